from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.fleet.map_layout import Layout, lay_out

layouts = st.builds(
    lay_out,
    st.lists(st.integers(0, 25), max_size=4),
    st.integers(0, 25),
    st.integers(0, 220),
    st.integers(0, 80),
)


def _occupied(layout: Layout) -> Iterator[tuple[str, int, int, int]]:
    """What is drawn: name, line, first cell and the one after the last, without the frames that rails are drawn on."""
    for box in layout.boxes:
        for y in range(box.y, box.y + box.height):
            if box.form == "line":
                yield "symbols", y, box.x, box.x + 2
                yield "words", y, box.x + box.inset, box.x + box.width
            elif y < box.y + box.height - 1:
                yield "box", y, box.x, box.x + box.width
            else:
                yield "corner", y, box.x, box.x + 1
                yield "corner", y, box.x + box.width - 1, box.x + box.width
    for rail in layout.rails:
        yield "rail", rail.y, rail.x, rail.x + rail.width
    for caption in layout.captions:
        for y in range(caption.y, caption.y + caption.height):
            yield "caption", y, caption.x, caption.x + caption.width
    for turn in layout.turns:
        yield "turn", turn.y, turn.x, turn.x + 1
        yield "turn", turn.y, turn.x + turn.width - 1, turn.x + turn.width
    for _, y in layout.headings:
        yield "heading", y, 0, layout.width


@given(layouts)
def test_nothing_overlaps_and_nothing_leaves_the_area(layout: Layout) -> None:
    lines: dict[int, list[tuple[int, int, str]]] = {}
    for name, y, start, end in _occupied(layout):
        assert 0 <= start <= end <= layout.width and 0 <= y < layout.height, name
        lines.setdefault(y, []).append((start, end, name))
    for pieces in lines.values():
        for before, after in pairwise(sorted(pieces)):
            assert before[1] <= after[0], (before, after)


@given(st.lists(st.integers(0, 25), max_size=4), st.integers(0, 25), st.integers(0, 220), st.integers(0, 80))
def test_every_node_is_there_once(chains: list[int], idle: int, width: int, height: int) -> None:
    layout = lay_out(chains, idle, width, height)
    wanted = [(group, index) for group, nodes in enumerate([*chains, idle]) for index in range(nodes)]
    assert [(box.group, box.index) for box in layout.boxes] == wanted
    assert layout.width <= max(width, 12)


@given(layouts)
def test_every_leg_has_its_rail_or_none_has(layout: Layout) -> None:
    legs = [(rail.group, rail.leg) for rail in layout.rails]
    on_chains = [box for box in layout.boxes if box.height > 1 or box.inset > 2]
    groups = {rail.group for rail in layout.rails}
    assert len(set(legs)) == len(legs)
    assert all(rail.width > 0 for rail in layout.rails)
    for box in on_chains:
        if box.group in groups:
            assert (box.group, 2 * box.index) in legs and (box.group, 2 * box.index + 1) in legs


@given(layouts, st.integers(0, 100))
def test_what_is_not_seen_is_counted(layout: Layout, bottom: int) -> None:
    seen = [box for box in layout.boxes if box.y + box.height <= bottom]
    assert len(seen) + layout.below(bottom) == len(layout.boxes)


@given(layouts)
def test_a_box_is_found_by_its_cells(layout: Layout) -> None:
    for box in layout.boxes:
        assert layout.at(box.x, box.y) == layout.at(box.x + box.width - 1, box.y + box.height - 1) == box
    assert layout.at(layout.width, 0) is None


@pytest.mark.parametrize(
    ("nodes", "width", "height", "form"),
    [(2, 80, 12, "full"), (2, 58, 8, "small"), (4, 100, 25, "full"), (20, 100, 25, "line"), (3, 20, 20, "small")],
)
def test_the_roomiest_form_that_fits(nodes: int, width: int, height: int, form: str) -> None:
    layout = lay_out([nodes], 0, width, height)
    assert {box.form for box in layout.boxes} == {form}
    assert layout.height <= height


def test_rows_are_about_equal() -> None:
    layout = lay_out([4], 0, 110, 40)
    rows = [sum(box.y == y for box in layout.boxes) for y in sorted({box.y for box in layout.boxes})]
    assert rows == [2, 2]


def test_what_carries_nothing_is_smaller() -> None:
    layout = lay_out([1], 2, 100, 30)
    assert [box.form for box in layout.boxes] == ["full", "small", "small"]
