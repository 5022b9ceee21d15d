"""What the scheduler of a planned chain is told of it."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.planning.plan import ChainPlan, Link, ModelSize, NodeOffer
from pipeline.planning.prediction import Times


def pacing_table(
    chain: ChainPlan, size: ModelSize, offers: Sequence[NodeOffer], links: Sequence[Link]
) -> tuple[tuple[tuple[int, float], ...], float]:
    """The (rows, milliseconds) table of the slowest stage, and a row's milliseconds on links and in the head.

    Each of the chain's nodes must be among the offers.
    """
    numbers = {offer.id: number for number, offer in enumerate(offers)}
    nodes = tuple(numbers[stage.node] for stage in chain.stages)
    layers = [stage.end_layer - stage.first_layer for stage in chain.stages]
    times = Times(size, offers, links)
    table = tuple((rows, times.step(nodes, rows).slowest(layers)) for rows in offers[nodes[0]].costs.rows)
    return table, times.step(nodes, 1).way
