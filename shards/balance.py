"""Dealing decoder layers to the stages of a chain so that the slowest stage is as fast as it can be. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import inf

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

    @classmethod
    def of_bytes(cls, spans: WeightSpans) -> Costs:
        """The bytes a decode step reads, for want of a measurement; an embedding is looked up, not read."""
        return cls(0.0, tuple(map(_size, spans.layers)), _size(spans.head))


def balance(costs: Costs, stages: int) -> tuple[int, ...]:
    """Split layers into consecutive stages; the largest stage cost is smallest.

    Among the splits with the smallest maximum, the most even one (least sum of squares) is taken.

    Returns:
        The edges: stage i has the layers [edges[i], edges[i + 1]), at least one.

    Raises:
        ConfigurationError: there are more stages than layers, or none.
    """
    depth = len(costs.layers)
    if not 1 <= stages <= depth:
        raise ConfigurationError(
            f"{depth} layers cannot be split into {stages} stages", hint=f"Ask for 1 to {depth} stages."
        )
    parts = list(costs.layers)
    parts[0] += costs.embed
    parts[-1] += costs.head
    before = [0.0, *accumulate(parts)]

    def cost(first: int, end: int) -> float:
        return before[end] - before[first]

    bottleneck = [cost(0, end) for end in range(depth + 1)]  # least maximum over the splits of layers [0, end)
    for stage in range(2, stages + 1):
        for end in range(depth, stage - 1, -1):
            bottleneck[end] = min(max(bottleneck[cut], cost(cut, end)) for cut in range(stage - 1, end))
    limit = bottleneck[depth]

    # least sum of squares with no stage above the limit, and the last cut that gives it
    uneven = [cost(0, end) ** 2 if cost(0, end) <= limit else inf for end in range(depth + 1)]
    cuts: list[dict[int, int]] = []
    for stage in range(2, stages + 1):
        best: dict[int, int] = {}
        for end in range(depth, stage - 1, -1):
            sums = {cut: uneven[cut] + cost(cut, end) ** 2 for cut in range(stage - 1, end) if cost(cut, end) <= limit}
            best[end] = min(sums, key=sums.__getitem__, default=stage - 1)
            uneven[end] = sums.get(best[end], inf)
        cuts.append(best)
    edges = [depth]
    for best in reversed(cuts):
        edges.append(best[edges[-1]])
    return (0, *reversed(edges))


def _size(spans: tuple[Span, ...]) -> int:
    return sum(end - start for start, end in spans)
