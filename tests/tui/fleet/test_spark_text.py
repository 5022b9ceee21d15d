from fleet_states import history_of, simple
from hypothesis import given
from hypothesis import strategies as st

from tui.client.history import History
from tui.fleet.spark_text import curve, curves


@given(st.lists(st.floats()), st.integers(-1, 40), st.none() | st.floats(0, 10))
def test_a_curve_is_as_wide_as_asked(values: list[float], width: int, top: float | None) -> None:
    assert len(curve(values, width, top)) == max(width, 0)


def test_the_newest_value_is_at_the_right_end() -> None:
    assert curve([0, 1, 2, 4, 8], 3) == "▃▅█"
    assert curve([8], 3) == "  █"
    assert curve([], 3) == "   "
    assert curve([0, 0.01, 1], 3, top=1.0) == "▁▂█"


def test_without_anything_everything_is_at_the_bottom() -> None:
    assert curve([0.0, 0.0], 2) == "▁▁"


def test_the_newest_number_is_in_words() -> None:
    state = simple(2)
    rows = curves(state, history_of(state))
    assert [(row.label, row.words) for row in rows] == [
        ("tok/s", "0.0"),
        ("queue", "1"),
        ("running", "2"),
        ("use pc-1", "42 %"),
        ("use pc-2", "42 %"),
    ]


def test_before_the_first_state() -> None:
    assert curves(None, None) == []
    assert [row.words for row in curves(None, History())] == ["–", "–", "–"]
