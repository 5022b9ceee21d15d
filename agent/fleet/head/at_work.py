"""Copies of the model at work, beside the plans they follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pipeline.head import Head
from pipeline.planning.plan import ChainPlan, Plan
from pipeline.running import Copy


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """A copy, and the plan it follows."""

    copy: Copy
    plan: ChainPlan

    def following(self, plan: ChainPlan) -> Running:
        """The same copy under another plan with its stages; what memory it has taken, it keeps."""
        held = {"stages": self.plan.stages, "kv_tokens": self.plan.kv_tokens}
        return Running(self.copy, plan.model_copy(update=held))


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
        " - ".join(f"{name_of(stage.node)} {stage.first_layer}-{stage.end_layer - 1}" for stage in chain.stages)
        for chain in plan.chains
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


def _places(chain: ChainPlan) -> list[tuple[str, int, int]]:
    return [(stage.node, stage.first_layer, stage.end_layer) for stage in chain.stages]
