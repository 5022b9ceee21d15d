"""Dealing decoder layers to the stages of a chain so that the slowest stage is as fast as it can be. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from shards.edges import Edge
from shards.errors import ConfigurationError
from shards.manifest import Span, WeightSpans


@dataclass(frozen=True, slots=True)
class Costs:
    """What the parts of a model cost in a step, in any one unit."""

    embed: float
    """The first stage besides its layers."""
    layers: tuple[float, ...]
    head: float
    """The tail besides its layers."""
    attention: tuple[float, ...] = ()
    """Of each layer, its attention; empty: layers are not divided."""
    fixed: float = 0.0
    """Each stage, whatever it has."""

    @classmethod
    def of_bytes(cls, spans: WeightSpans) -> Costs:
        """The bytes a decode step reads, for want of a measurement; an embedding is looked up, not read."""
        return cls(0.0, tuple(map(_size, spans.layers)), _size(spans.head))

    def before(self, *, halves: bool) -> list[float]:
        """What comes before each edge, those within layers too if `halves`."""
        parts = list(self.layers)
        if halves:
            pairs = zip(self.layers, self.attention, strict=True)
            parts = [part for layer, attention in pairs for part in (attention, layer - attention)]
        parts[0] += self.embed
        parts[-1] += self.head
        return [0.0, *accumulate(parts)]


def balance(costs: Sequence[Costs], stages: int) -> tuple[Edge, ...]:
    """Split layers into consecutive stages; the largest stage cost is smallest.

    Among the splits with the smallest maximum, the most even one (least sum of squares) is taken. Both are exact:
    dynamic programming over the edges.

    Args:
        costs: One or more tables of one model, as for different numbers of rows: a stage costs what it costs by the
            table that is worst for it. Layers are divided if all tables know their attentions.
        stages: How many.

    Returns:
        The edges: stage i is what is between edges[i] and edges[i + 1], at least as much as one layer.

    Raises:
        ConfigurationError: there are more stages than layers, or none.
    """
    depth, halves = len(costs[0].layers), all(table.attention for table in costs)
    if not 1 <= stages <= depth:
        raise ConfigurationError(
            f"{depth} layers cannot be split into {stages} stages", hint=f"Ask for 1 to {depth} stages."
        )
    edges, least = _edges(depth, halves=halves)
    tables = [(table.fixed, table.before(halves=halves)) for table in costs]
    last = len(edges) - 1
    cost = [
        [max(fixed + before[end] - before[first] for fixed, before in tables) for end in range(last + 1)]
        for first in range(last + 1)
    ]

    bottleneck = list(cost[0])  # least maximum over the splits of what is before an edge
    for stage in range(2, stages + 1):
        for end in range(last, stage * least - 1, -1):
            cuts = range((stage - 1) * least, end - least + 1)
            bottleneck[end] = min(max(bottleneck[cut], cost[cut][end]) for cut in cuts)
    limit = bottleneck[last]

    # least sum of squares with no stage above the limit, and the last cut that gives it
    uneven = [part**2 if part <= limit else inf for part in cost[0]]
    chosen: list[dict[int, int]] = []
    for stage in range(2, stages + 1):
        best: dict[int, int] = {}
        for end in range(last, stage * least - 1, -1):
            cuts = range((stage - 1) * least, end - least + 1)
            sums = {cut: uneven[cut] + cost[cut][end] ** 2 for cut in cuts if cost[cut][end] <= limit}
            best[end] = min(sums, key=sums.__getitem__, default=cuts.start)
            uneven[end] = sums.get(best[end], inf)
        chosen.append(best)
    places = [last]
    for best in reversed(chosen):
        places.append(best[places[-1]])
    return (0, *(edges[place] for place in reversed(places)))


def _edges(depth: int, *, halves: bool) -> tuple[list[Edge], int]:
    """Where cuts can be, and how many of these steps are a layer."""
    if not halves:
        return list(range(depth + 1)), 1
    return [half / 2 if half % 2 else half // 2 for half in range(2 * depth + 1)], 2


def _size(spans: tuple[Span, ...]) -> int:
    return sum(end - start for start, end in spans)
