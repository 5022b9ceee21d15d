from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.edges import attentions, begin_of, edge_words, end_of, feed_forwards, layer_words, layers_between, layers_of

EDGES = st.integers(0, 20).map(lambda half: half / 2)


class Range(NamedTuple):
    first_layer: int
    end_layer: int
    begins_after_attention: bool
    ends_after_attention: bool


@given(EDGES, EDGES)
def test_a_range_has_the_edges_it_was_made_of(begin: float, length: float) -> None:
    end = begin + length
    made = Range(**layers_between(begin, end))
    assert (begin_of(made), end_of(made)) == (begin, end)
    assert layers_of(made) == layers_between(begin, end)
    assert attentions(begin, end) + feed_forwards(begin, end) == 2 * length


def test_a_divided_layer_is_on_both_sides() -> None:
    assert layers_between(0, 11.5) == Range(0, 12, False, True)._asdict()
    assert layers_between(11.5, 20) == Range(11, 20, True, False)._asdict()
    assert [attentions(0, 11.5), attentions(11.5, 20)] == [12, 8]
    assert [feed_forwards(0, 11.5), feed_forwards(11.5, 20)] == [11, 9]


@pytest.mark.parametrize(
    ("begin", "end", "words"),
    [
        (0, 12, "0-11"),
        (12, 13, "12-12"),
        (0, 11.5, "0-11½"),
        (11.5, 20, "11½-19"),
        (1.5, 2.5, "1½-2½"),
        (0, 2.0, "0-1"),
    ],
)
def test_layers_in_words(begin: float, end: float, words: str) -> None:
    assert edge_words(begin, end) == words
    assert layer_words(Range(**layers_between(begin, end))) == words
