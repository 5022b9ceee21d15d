"""Layers that are divided between two stages: their attention on the one before, what is left on the one behind."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise, repeat
from math import floor

from shards.edges import Edge

Halves = tuple[bool, ...]
"""For each stage, whether besides its layers it has the attention of the next one; empty: none has.

The layers of a stage are then counted from the one it begins in to the one it ends in, without that.
"""


def edges_of(layers: Sequence[int], halves: Halves) -> tuple[Edge, ...]:
    """The edges between stages with so many layers."""
    ends = zip(accumulate(layers), halves or repeat(False), strict=False)
    return (0, *(end + 0.5 if half else end for end, half in ends))


def dealt(edges: Sequence[Edge]) -> tuple[tuple[int, ...], Halves]:
    """The layers and the halves between edges."""
    halves = tuple(edge % 1 > 0 for edge in edges[1:])
    return tuple(floor(end) - floor(begin) for begin, end in pairwise(edges)), halves if any(halves) else ()
