import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.fleet.gauges import bar


@given(st.none() | st.floats(), st.integers(-2, 50))
def test_a_bar_is_as_wide_as_asked(part: float | None, width: int) -> None:
    full, empty = bar(part, width)
    assert len(full) + len(empty) == max(width, 0)


@pytest.mark.parametrize(
    ("part", "drawn"),
    [(0.0, "░░░░"), (0.5, "██░░"), (1.0, "████"), (7.0, "████"), (-1.0, "░░░░"), (0.28, "█▏░░"), (None, "····")],
)
def test_parts(part: float | None, drawn: str) -> None:
    assert "".join(bar(part, 4)) == drawn


def test_no_number_is_nothing_known() -> None:
    assert bar(math.nan, 4) == ("", "····")
