from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tui.client.plain import one_line
from tui.fleet.cells import both_ends, fit


@given(st.text(max_size=40).map(one_line), st.integers(0, 30), st.booleans())
def test_a_text_takes_exactly_the_cells_it_is_given(text: str, width: int, right: bool) -> None:
    assert cell_len(fit(text, width, right=right)) == width


@given(st.text(max_size=20).map(one_line), st.text(max_size=20).map(one_line), st.integers(0, 40))
def test_two_texts_take_exactly_the_cells_they_are_given(left: str, right: str, width: int) -> None:
    assert cell_len(both_ends(left, right, width)) == width


def test_what_is_cut_says_so() -> None:
    assert fit("abcdef", 4) == "abc…"
    assert fit("机器机器", 4) == "机… "
    assert fit("ab", 4, right=True) == "  ab"
    assert both_ends("device", "layers", 14) == "device  layers"
    assert both_ends("device", "layers", 8) == "device  "
