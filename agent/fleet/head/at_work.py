"""Copies of the model at work, beside the plans they follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import monotonic
from typing import NamedTuple, Self

from agent.fleet.head.drift import DriftWatch, Look
from agent.fleet.head.placed_draft import PlacedDraft
from pipeline.head import Head
from pipeline.planning.plan import ChainPlan, Plan
from pipeline.running import Copy
from shards.edges import Edge, begin_of, end_of, layer_words
from shards.runtime import EngineName


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """A copy, the plan it follows, and its draft, if it has a model for that."""

    copy: Copy
    plan: ChainPlan
    draft: PlacedDraft | None = None

    def following(self, plan: ChainPlan) -> Running:
        """The same copy under another plan with its stages; what memory it has taken, it keeps."""
        held = {"stages": self.plan.stages, "kv_tokens": self.plan.kv_tokens}
        return replace(self, plan=plan.model_copy(update=held))

    def look(self) -> Look | None:
        """How it does; None before its first step."""
        snapshot = self.copy.head.snapshot()
        stages, scheduler = snapshot.times.stages, snapshot.scheduler
        compute_ms = tuple(stage.compute / 1e3 for stage in stages)
        return Look(scheduler.steps, scheduler.rows, compute_ms) if stages else None


def shares(running: Iterable[Running]) -> list[tuple[Head, float]]:
    """What each head can do, for those who deal requests out."""
    return [(one.copy.head, max(one.plan.prediction.many_users, 1e-9)) for one in running]


def kept(plan: Plan, running: Iterable[Running]) -> dict[ChainPlan, Running]:
    """The chains of a plan that are at work already."""
    free, found = list(running), dict[ChainPlan, Running]()
    for chain in plan.chains:
        for one in free:
            if _places(one.plan) == _places(chain) and one.plan.kv_tokens >= chain.kv_tokens:
                found[chain] = one
                free.remove(one)
                break
    return found


def memory(plans: Iterable[ChainPlan]) -> Counter[str]:
    """Bytes that chains take on each node, without drafts."""
    taken = Counter[str]()
    for chain in plans:
        for stage in chain.stages:
            taken[stage.node] += stage.memory
    return taken


def carriers(running: Sequence[Running]) -> set[str]:
    """The nodes of copies at work and of their drafts, gone or not."""
    stages = {stage.node for one in running for stage in one.plan.stages}
    return stages | {one.draft.node for one in running if one.draft is not None and one.draft.node is not None}


class Held(NamedTuple):
    """What copies and their drafts take on each node."""

    taken: Counter[str]
    """Bytes."""
    drafts: Counter[str]
    """How many."""

    @classmethod
    def by(cls, running: Iterable[Running]) -> Self:
        """By copies at work."""
        running = list(running)
        return cls(memory(one.plan for one in running), Counter()).with_drafts(drafts(running))

    def with_draft(self, node: str, size: int) -> Self:
        """And a draft of so many bytes."""
        return self._replace(taken=self.taken + Counter({node: size}), drafts=self.drafts + Counter({node: 1}))

    def with_drafts(self, drafts: Iterable[PlacedDraft]) -> Self:
        """And these."""
        held = self
        for draft in drafts:
            if draft.node is not None:
                held = held.with_draft(draft.node, draft.memory)
        return held


def drafts(running: Iterable[Running]) -> list[PlacedDraft]:
    """The drafts at work."""
    return [one.draft for one in running if one.draft is not None and one.draft.memory]


def in_the_way(plan: Plan, running: Iterable[Running], head: str) -> list[PlacedDraft]:
    """Drafts on nodes that are to carry layers; the node on the head's PC, `head`, may carry both."""
    nodes = memory(plan.chains).keys() - {head}
    return [draft for draft in drafts(running) if draft.node in nodes]


def together(plan: Plan, staying: Sequence[Running], leaving: Iterable[Running], head: str) -> Held:
    """What is taken on each node when the chains of a plan have been opened, beside those that leave.

    Args:
        plan: The plan.
        staying: The copies that follow it already. Their drafts stay where they are not in the way.
        leaving: Those that go on for a while.
        head: The node on the head's PC.
    """
    in_way = in_the_way(plan, staying, head)
    taken, count = Held.by(leaving)
    held = Held(taken + memory(plan.chains), count)
    return held.with_drafts(draft for draft in drafts(staying) if draft not in in_way)


def fits(taken: Mapping[str, int], allowed: Mapping[str, int]) -> bool:
    """Whether there is room for all that is taken, each node allowing so many bytes."""
    return all(count <= allowed.get(node, 0) for node, count in taken.items())


def drifted(
    watch: DriftWatch,
    running: Sequence[Running],
    predict: Callable[[ChainPlan], Callable[[int], Sequence[float]] | None],
) -> list[str]:
    """The nodes that are not any more what their chains' predictions say."""
    nodes: list[str] = []
    for one in running:
        seen, times = one.look(), predict(one.plan)
        if seen is not None and times is not None:
            nodes += watch.look(one.copy, [stage.node for stage in one.plan.stages], seen, times, monotonic())
    watch.forget([one.copy for one in running])
    return nodes


def left_out(plan: Plan, running: Iterable[Running], rate: float | None = None) -> dict[str, str]:
    """Why nodes carry nothing, by their keys.

    Args:
        plan: The newest one.
        running: What is at work.
        rate: What that gives, in tokens a second, where it was not worth changing for the plan.
    """
    reasons = {left.node: left.reason for left in plan.left_out}
    if rate is not None:
        gain = f"would make it {plan.prediction.many_users:.1f} tok/s instead of {rate:.1f}"
        for node in {stage.node for chain in plan.chains for stage in chain.stages}:
            reasons[node] = f"{gain}: too little to move the model for"
    busy = {stage.node for one in running for stage in one.plan.stages}
    return {node: reason for node, reason in reasons.items() if node not in busy}


def and_drafts(node: str, reason: str, drafts: Iterable[PlacedDraft]) -> str:
    """Why a node carries no layers, and that it runs a draft, if it does."""
    return f"{reason}; it runs the draft" if any(draft.node == node for draft in drafts) else reason


def outline(plan: Plan, name_of: Callable[[str], str]) -> str:
    """A plan in a line."""
    chains = [
        " - ".join(f"{name_of(stage.node)} {layer_words(stage)}" for stage in chain.stages) for chain in plan.chains
    ]
    return "; ".join(chains)


def in_parallel(jobs: Sequence[Callable[[], object]]) -> list[Exception]:
    """Do all; what went wrong."""
    if not jobs:
        return []
    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = [pool.submit(job) for job in jobs]
    errors = [future.exception() for future in futures]
    return [error for error in errors if isinstance(error, Exception)]


def _places(chain: ChainPlan) -> list[tuple[str, EngineName, Edge, Edge]]:
    return [(stage.node, stage.engine, begin_of(stage), end_of(stage)) for stage in chain.stages]
