"""Where the rows of a step are: always as worked out anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shards.runtime import SequenceRows
from shards.step_rows import StepRows


@st.composite
def steps(draw: st.DrawFn) -> tuple[SequenceRows, ...]:
    counts = draw(st.lists(st.integers(0, 5), max_size=6))
    return tuple(
        SequenceRows(i, draw(st.integers(0, 900)), count, draw(st.integers(0, count))) for i, count in enumerate(counts)
    )


@given(steps())
def test_rows_are_told_one_by_one(step: tuple[SequenceRows, ...]) -> None:
    rows = StepRows(step)
    each = [(sequence, place) for sequence in step for place in range(sequence.count)]
    assert rows.positions([s.past for s in step]).tolist() == [s.past + place for s, place in each]
    assert rows.of_each([s.sequence for s in step]).tolist() == [s.sequence for s, _ in each]
    wanted = [i for i, (s, place) in enumerate(each) if place >= s.count - s.sample]
    assert rows.wanted.tolist() == wanted
    assert rows.begins.tolist() == [sum(s.count for s in step[:i]) for i in range(len(step) + 1)]


@given(steps(), steps())
def test_a_step_fits_where_counts_and_wanted_rows_are_the_same(
    one: tuple[SequenceRows, ...], other: tuple[SequenceRows, ...]
) -> None:
    same = [(s.count, s.sample) for s in one] == [(s.count, s.sample) for s in other]
    assert StepRows(one).fits(other) == same
