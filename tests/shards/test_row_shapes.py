"""Steps are filled up where that is cheaper than another shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.row_shapes import MOST_ADDED, RowShapes

CHANGE_MS = 4.0


def step_ms(rows: int) -> float:
    return 5.0 + 0.5 * rows


def run(shapes: RowShapes, rows: int) -> tuple[int, float]:
    """A step: the rows it was run with, and what that took."""
    before = shapes._rows
    total = shapes.fitting(rows)
    ms = step_ms(total) + (CHANGE_MS if total != before else 0.0)
    shapes.note(total, ms)
    return total, ms


@pytest.fixture
def shapes() -> RowShapes:
    learnt = RowShapes()
    for rows in (1, 1, 8, 8, 1, 8):
        learnt.note(rows, step_ms(rows) + (CHANGE_MS if rows != learnt._rows else 0.0))
    return learnt


def test_it_learns_what_a_change_costs(shapes: RowShapes) -> None:
    assert shapes.change_ms == pytest.approx(CHANGE_MS)
    assert shapes.note(8, step_ms(8)) == 0.0
    assert shapes.note(3, step_ms(3) + CHANGE_MS) == pytest.approx(CHANGE_MS)


def test_what_comes_in_turn_keeps_the_larger_shape(shapes: RowShapes) -> None:
    assert [run(shapes, rows)[0] for rows in (2, 3, 2, 3, 2, 3)][-4:] == [3] * 4


def test_a_shape_that_is_needed_no_more_is_left(shapes: RowShapes) -> None:
    assert [run(shapes, rows)[0] for rows in (8, 2, 2, 2, 2)] == [8, 8, 2, 2, 2]  # 3 ms each time, for 4 once


def test_nothing_is_added_where_rows_are_dear() -> None:
    shapes = RowShapes()
    for rows in (1, 1, 8, 8, 1, 8):
        shapes.note(rows, 10.0 * rows + (CHANGE_MS if rows != shapes._rows else 0.0))
    assert [run(shapes, rows)[0] for rows in (2, 3, 2, 3)] == [2, 3, 2, 3]


def test_nothing_is_added_before_anything_is_known() -> None:
    shapes = RowShapes()
    shapes.note(8, 9.0)
    assert shapes.fitting(2) == 2


def test_an_answer_is_not_filled_up_to_a_prompt(shapes: RowShapes) -> None:
    run(shapes, 500)
    assert run(shapes, 500 - MOST_ADDED - 1)[0] == 500 - MOST_ADDED - 1


@given(st.lists(st.integers(1, 12), min_size=1, max_size=60))
def test_it_never_costs_much_more_than_the_shapes_as_they_are(wanted: list[int]) -> None:
    shapes = RowShapes()
    for rows in (1, 1, 8, 8, 1, 8):
        shapes.note(rows, step_ms(rows) + (CHANGE_MS if rows != shapes._rows else 0.0))
    before, plain, ours = 8, 0.0, 0.0
    for rows in wanted:
        total, ms = run(shapes, rows)
        assert rows <= total <= max(rows, before, max(wanted, default=0), 8)
        ours += ms
        plain += step_ms(rows) + (CHANGE_MS if rows != before else 0.0)
        before = rows
    assert ours <= plain + CHANGE_MS * (1 + sum(a != b for a, b in zip([8, *wanted], wanted, strict=False)))
