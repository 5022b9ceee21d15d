"""Copies of the model at work, beside the plans they follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic

from agent.fleet.head.drift import DriftWatch, Look
from pipeline.head import Head
from pipeline.planning.plan import ChainPlan, Plan
from pipeline.running import Copy
from shards.edges import Edge, begin_of, end_of, layer_words
from shards.runtime import EngineName


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """A copy, and the plan it follows."""

    copy: Copy
    plan: ChainPlan

    def following(self, plan: ChainPlan) -> Running:
        """The same copy under another plan with its stages; what memory it has taken, it keeps."""
        held = {"stages": self.plan.stages, "kv_tokens": self.plan.kv_tokens}
        return Running(self.copy, plan.model_copy(update=held))

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


def memory(plans: Iterable[ChainPlan]) -> dict[str, int]:
    """Bytes that chains take on each node."""
    taken: dict[str, int] = {}
    for chain in plans:
        for stage in chain.stages:
            taken[stage.node] = taken.get(stage.node, 0) + stage.memory
    return taken


def fits(plans: Iterable[ChainPlan], allowed: Mapping[str, int]) -> bool:
    """Whether there is room for all these chains at the same time, each node allowing so many bytes."""
    return all(taken <= allowed.get(node, 0) for node, taken in memory(plans).items())


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
