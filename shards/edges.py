"""Where a model is cut: before a layer, or within one, behind its attention.

An edge is the number of layers before it: 11 is before layer 11, and 11.5 is within it: its attention (with the KV
cache) is on the stage before, the rest of it on the stage behind. Both of these have layer 11 in their range.
"""

from __future__ import annotations

from math import ceil, floor
from typing import Protocol, TypedDict

Edge = float
"""A whole number, or one and a half more."""

_HALF = "½"


class LayerRange(Protocol):
    """The layers of a stage, [first_layer, end_layer), of which the first and the last may be there in part."""

    @property
    def first_layer(self) -> int:
        """The first, from 0."""
        ...

    @property
    def end_layer(self) -> int:
        """One past the last."""
        ...

    @property
    def begins_after_attention(self) -> bool:
        """Whether the attention of the first layer is on the stage before."""
        ...

    @property
    def ends_after_attention(self) -> bool:
        """Whether of the last layer only the attention is here."""
        ...


class RangeFields(TypedDict):
    """The fields of a LayerRange."""

    first_layer: int
    end_layer: int
    begins_after_attention: bool
    ends_after_attention: bool


def layers_between(begin: Edge, end: Edge) -> RangeFields:
    """The fields of the range between two edges."""
    return {
        "first_layer": floor(begin),
        "end_layer": ceil(end),
        "begins_after_attention": begin > floor(begin),
        "ends_after_attention": end < ceil(end),
    }


def layers_of(layers: LayerRange) -> RangeFields:
    """The fields of a range, for another object that has it."""
    return layers_between(begin_of(layers), end_of(layers))


def begin_of(layers: LayerRange) -> Edge:
    """The edge a range begins at."""
    return layers.first_layer + 0.5 if layers.begins_after_attention else layers.first_layer


def end_of(layers: LayerRange) -> Edge:
    """The edge a range ends at."""
    return layers.end_layer - 0.5 if layers.ends_after_attention else layers.end_layer


def attentions(begin: Edge, end: Edge) -> int:
    """Attentions between two edges; each has a KV cache."""
    return ceil(end) - ceil(begin)


def feed_forwards(begin: Edge, end: Edge) -> int:
    """What follows the attentions, between two edges."""
    return floor(end) - floor(begin)


def layer_words(layers: LayerRange) -> str:
    """A range for people: first and last layer, one that is shared with another stage as a half: `0-11½`, `11½-19`."""
    return edge_words(begin_of(layers), end_of(layers))


def edge_words(begin: Edge, end: Edge) -> str:
    """`layer_words` of what is between two edges."""
    return f"{_number(begin)}-{_number(end if end % 1 else end - 1)}"


def _number(edge: Edge) -> str:
    return f"{floor(edge)}{_HALF if edge % 1 else ''}"
