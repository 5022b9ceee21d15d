from itertools import pairwise

from dialog_head import NASTY
from fleet_states import chain, fleet, history_of, mixed, node, simple
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tui.client.state import Condition, Fleet, Work
from tui.fleet.map_drawing import Line, Marks, draw_rails, draw_standing, joined
from tui.fleet.map_facts import MapFacts, map_facts
from tui.fleet.map_layout import Layout, lay_out
from tui.fleet.step_marks import phases, round_of, symbols

texts = st.sampled_from(NASTY) | st.text(max_size=30)
numbers = st.none() | st.floats()
nodes = st.builds(
    lambda number, name, work, problem, condition, planned: node(
        number, name=name, work=work, problem=problem, condition=condition, memory_planned=planned
    ),
    st.integers(1, 9),
    texts,
    st.none() | st.builds(Work, what=texts, done=st.floats(0, 1e12), total=st.floats(0, 1e12)),
    st.none() | texts,
    st.builds(
        Condition,
        memory_allowed=st.integers(0, 10**15),
        battery=numbers,
        temperature=numbers,
        load=numbers,
        on_mains=st.booleans(),
    ),
    st.integers(0, 10**15),
)
fleets = st.builds(
    lambda known, carried, steps: fleet(
        chains=tuple(chain(numbers, steps=steps, requests=1, number=at) for at, numbers in enumerate(carried)),
        nodes=tuple({each.key: each for each in known}.values()),
    ),
    st.lists(nodes, max_size=9),
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=9), max_size=3),
    st.integers(0, 12),
)


def _plan(state: Fleet, width: int, height: int) -> tuple[MapFacts, Layout]:
    facts = map_facts(state, history_of(state, 3))
    return facts, lay_out([len(each.nodes) for each in facts.chains], len(facts.idle), width, height)


def _lines(state: Fleet, width: int, height: int, chosen: int | None = None) -> list[Line]:
    facts, layout = _plan(state, width, height)
    box = layout.boxes[chosen % len(layout.boxes)] if chosen is not None and layout.boxes else None
    marks: Marks = {
        group: [
            (round_of(each).position(phase), symbol)
            for phase, symbol in zip(phases(each, round_of(each)), symbols(each), strict=True)
        ]
        for group, each in enumerate(state.chains)
    }
    standing, rails = draw_standing(layout, facts, box), draw_rails(layout, marks, box)
    return [joined(standing, rails, y) for y in range(layout.height)]


def _text(lines: list[Line]) -> str:
    rows = []
    for line in lines:
        row = ""
        for piece in line:
            row += " " * (piece.x - cell_len(row)) + piece.text
        rows.append(row.rstrip())
    return "\n".join(rows)


@given(fleets, st.integers(12, 160), st.integers(1, 60), st.none() | st.integers(0, 30))
def test_no_piece_overlaps_another_or_leaves_the_area(
    state: Fleet, width: int, height: int, chosen: int | None
) -> None:
    for line in _lines(state, width, height, chosen):
        for before, after in pairwise(line):
            assert before.x + cell_len(before.text) <= after.x, (before, after)
        if line:
            assert line[0].x >= 0 and line[-1].x + cell_len(line[-1].text) <= width, line[-1]
        for piece in line:
            assert "\x1b" not in piece.text and "\n" not in piece.text


def test_two_nodes_at_80_cells() -> None:
    state = simple(2, steps=2)
    assert (
        _text(_lines(state, 80, 12))
        == """\
chain 1 · 20.0 tok/s · 2 running, 1 waiting · 2 in flight · round 3.0 ms
╭─ ● pc-1 (head) ────────────────╮           ╭─ ● pc-2 ───────────────────────╮
│ GPU                layers 0-14 │           │ GPU               layers 15-29 │
│ serving              load 30 % │           │ serving              load 30 % │
│ mem ██████▉░░░░ 62 % of 8.0 GB │ 0.40 ms   │ mem ██████▉░░░░ 62 % of 8.0 GB │
│ use ████████▍░░░░░░░░░░░  42 % │ 112 MB/s  │ use ████████▍░░░░░░░░░░░  42 % │
│ 61 °C             battery 80 % │ ▸0 B/s    │ 62 °C                          │
╰────────────────────────●───────╯──────────▶╰───────────────────────●────────╯
 ◀ tokens to head · 0.40 ms · 112 MB/s ──────────────────────────────────────╯"""
    )


def test_a_row_that_is_full_goes_on_in_the_next() -> None:
    text = _text(_lines(simple(3, steps=0), 60, 12))
    assert "╭ 0.40 ms · 112 MB/s · ▸0 B/s ─" in text and "◀ tokens to head ─" in text
    assert [name in text for name in ("pc-1", "pc-2", "pc-3")] == [True] * 3


def test_states_have_words_and_symbols() -> None:
    text = _text(_lines(mixed(), 100, 40))
    for words in (
        "◐ pc-2",
        "fetching 42 %",
        "◐ pc-3",
        "compiling",
        "○ pc-4",
        "idle",
        "! pc-5",
        "left out: no",
        "× 0909",
    ):
        assert words in text, words


def test_the_chosen_node_has_another_frame() -> None:
    before, after = (_text(_lines(simple(2), 80, 12, chosen)) for chosen in (None, 1))
    assert "┏▸ ● pc-2 ━" in after and "┏" not in before


def test_twenty_nodes_are_a_line_each() -> None:
    lines = _text(_lines(simple(20, steps=3), 76, 14)).splitlines()
    assert len(lines) == 21
    assert all(f"pc-{number}" in line and "serving" in line for number, line in enumerate(lines[1:], 1))
    assert sum(line.count("●") - 1 for line in lines[1:]) == 3


def test_several_steps_in_one_cell_are_counted() -> None:
    facts, layout = _plan(simple(2), 76, 3)
    rails = draw_rails(layout, {0: [((0, 0.0), "●")] * 3 + [((2, 0.0), "●")] * 12}, None)
    assert [piece.text for y in sorted(rails) for piece in rails[y] if piece.look == "mark"] == ["3", "+"]
    assert facts.chains


def test_a_chain_that_failed_says_so() -> None:
    state = fleet(chains=(chain([1], failure="pc-1 is gone"),), nodes=(node(1),))
    assert _text(_lines(state, 80, 12)).startswith("× chain 1 has failed: pc-1 is gone")


def test_no_chain_says_why() -> None:
    assert _text(_lines(fleet(chains=(), nodes=(), waits_for="pc-1 is measuring"), 40, 5)) == "pc-1 is measuring"
