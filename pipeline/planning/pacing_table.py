"""What is expected of a planned chain, for its scheduler and for those who watch it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.chain_times import ChainTimes
from pipeline.planning.halves import Halves, dealt
from pipeline.planning.plan import ChainPlan, Link, ModelSize, NodeOffer
from pipeline.planning.prediction import STAGE_MS, Times


def pacing_table(chain: ChainPlan, size: ModelSize, offers: Sequence[NodeOffer], links: Sequence[Link]) -> ChainTimes:
    """What the scheduler of a chain begins with.

    Raises:
        KeyError: one of the chain's nodes is not among the offers, or not with its engine.
    """
    times, nodes, layers, halves = _parts(chain, size, offers, links)
    table = tuple(
        (rows, times.step(nodes, rows, halves=halves).slowest(layers)) for rows in offers[nodes[0]].costs.rows
    )
    first, tail = nodes[0], nodes[-1]
    detour = times.hop(tail, None).latency + times.hop(None, first).latency - times.hop(tail, first).latency
    return ChainTimes(table, times.step(nodes, 1).way, max(0.0, detour))


def stage_times(
    chain: ChainPlan, size: ModelSize, offers: Sequence[NodeOffer], links: Sequence[Link]
) -> Callable[[int], tuple[float, ...]]:
    """A function from a number of rows to the milliseconds of each stage's engine; raises as `pacing_table`."""
    times, nodes, layers, halves = _parts(chain, size, offers, links)

    def engines(rows: int) -> tuple[float, ...]:
        step = times.step(nodes, rows, halves=halves)
        return tuple(step.stage(i, count) - STAGE_MS for i, count in enumerate(layers))

    return engines


def chain_rate(chain: ChainPlan, size: ModelSize, offers: Sequence[NodeOffer], links: Sequence[Link]) -> float:
    """Tokens per second of a chain with its users, by today's measurements; raises as `pacing_table`."""
    times, nodes, layers, halves = _parts(chain, size, offers, links)
    return chain.users * 1e3 / times.period(nodes, layers, chain.users, halves)


def _parts(
    chain: ChainPlan, size: ModelSize, offers: Sequence[NodeOffer], links: Sequence[Link]
) -> tuple[Times, tuple[int, ...], tuple[int, ...], Halves]:
    numbers = {(offer.id, offer.costs.engine): number for number, offer in enumerate(offers)}
    nodes = tuple(numbers[stage.node, stage.engine] for stage in chain.stages)
    return Times(size, offers, links), nodes, *dealt(chain.edges)
