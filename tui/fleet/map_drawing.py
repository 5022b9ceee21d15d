"""The map as lines of text: words and bars of what is known, at the places of a layout. Pure.

What moves (the rails, with the steps on them) is drawn apart from what stands still, which is most of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from rich.cells import cell_len

from tui import amounts
from tui.fleet.cells import both_ends, fit
from tui.fleet.gauges import bar
from tui.fleet.map_facts import SYMBOLS, ChainFacts, Kind, LinkFacts, MapFacts, NodeFacts
from tui.fleet.map_layout import LINK_WIDTH, Box, Caption, Layout, Rail, Turn
from tui.fleet.step_marks import Position

Look = Literal["plain", "dim", "title", "good", "busy", "bad", "frame", "chosen", "rail", "mark", "bar"]
"""What a piece is; its colours are the theme's."""

LOOKS: tuple[Look, ...] = ("plain", "dim", "title", "good", "busy", "bad", "frame", "chosen", "rail", "mark", "bar")

_KIND_LOOKS: dict[Kind, Look] = {
    "serving": "good",
    "working": "busy",
    "idle": "dim",
    "left out": "bad",
    "gone": "bad",
}
_ROOMY = 27
"""Cells inside a box from which amounts are said in full."""
_BUSY = 9


class Piece(NamedTuple):
    """Text of one look."""

    x: int
    text: str
    look: Look


Line = tuple[Piece, ...]
"""From left to right; between pieces there is nothing."""

Lines = dict[int, list[Piece]]
"""By y."""

Marks = Mapping[int, Iterable[tuple[Position, str]]]
"""By number of the chain: where its steps are, and how each is drawn."""


def draw_standing(layout: Layout, facts: MapFacts, chosen: Box | None) -> Lines:
    """Everything but the rails."""
    lines: Lines = {}
    for group, y in layout.headings:
        _put(lines, 0, y, *_heading(group, facts, layout.width))
    for box in layout.boxes:
        link = facts.chains[box.group].links[box.index] if box.group < len(facts.chains) else None
        _box(lines, box, node_at(facts, box), link, box == chosen)
    for caption in layout.captions:
        _caption(lines, caption, facts.chains[caption.group])
    for turn in layout.turns:
        _turn(lines, turn)
    return lines


def draw_rails(layout: Layout, marks: Marks, chosen: Box | None) -> Lines:
    """The rails, with the steps on them."""
    cells: dict[tuple[int, int], list[tuple[float, str]]] = {}
    for group, steps in marks.items():
        for (leg, part), symbol in steps:
            cells.setdefault((group, leg), []).append((part, symbol))
    lines: Lines = {}
    for rail in layout.rails:
        is_chosen = chosen is not None and (rail.group, rail.leg) == (chosen.group, 2 * chosen.index)
        plain: Look = "chosen" if is_chosen and chosen is not None and chosen.form != "line" else "rail"
        _put(lines, rail.x, rail.y, *_rail(rail, cells.get((rail.group, rail.leg), ()), plain))
    return lines


def joined(standing: Lines, rails: Lines, y: int) -> Line:
    """A whole line."""
    pieces = standing.get(y, []) + rails.get(y, [])
    return tuple(sorted(piece for piece in pieces if piece.text))


def node_at(facts: MapFacts, box: Box) -> NodeFacts:
    """The node that a box is for."""
    nodes = facts.chains[box.group].nodes if box.group < len(facts.chains) else facts.idle
    return nodes[box.index]


def _put(lines: Lines, x: int, y: int, *pieces: tuple[str, Look]) -> None:
    """Append pieces, one after the other."""
    line = lines.setdefault(y, [])
    for text, look in pieces:
        line.append(Piece(x, text, look))
        x += cell_len(text)


def _heading(group: int, facts: MapFacts, width: int) -> list[tuple[str, Look]]:
    if group >= len(facts.chains):
        if not facts.chains:
            return [(fit(facts.message, width), "title")]
        return [(fit(f"{len(facts.idle)} without a stage", width), "dim")]
    chain = facts.chains[group]
    if chain.failure:
        return [(fit(f"× {chain.title[0]} has failed: {chain.failure}", width), "bad")]
    return [(_as_fits(chain.title, width), "title")]


def _box(lines: Lines, box: Box, node: NodeFacts, link: LinkFacts | None, is_chosen: bool) -> None:
    if box.form == "line":
        _put(lines, box.x, box.y, (SYMBOLS[node.kind], _KIND_LOOKS[node.kind]), ("▸" if is_chosen else " ", "chosen"))
        _put(lines, box.x + box.inset, box.y, *_node_line(node, link, box.width - box.inset, is_chosen))
        return
    frame: Look = "chosen" if is_chosen else "frame"
    corners = "┏━┓┃┗┛" if is_chosen else "╭─╮│╰╯"
    _put(lines, box.x, box.y, *_top(node, box.width, corners, frame, is_chosen))
    inside = box.width - 4
    content = _full(node, inside) if box.form == "full" else _small(node, inside)
    for y, row in enumerate(content, box.y + 1):
        _put(lines, box.x, y, (corners[3] + " ", frame), *row)
        _put(lines, box.x + box.width - 2, y, (" " + corners[3], frame))
    bottom = box.y + box.height - 1
    _put(lines, box.x, bottom, (corners[4], frame))
    if link is None:  # else the bottom is a rail
        _put(lines, box.x + 1, bottom, (corners[1] * (box.width - 2), frame))
    _put(lines, box.x + box.width - 1, bottom, (corners[5], frame))


def _top(node: NodeFacts, width: int, corners: str, frame: Look, is_chosen: bool) -> list[tuple[str, Look]]:
    suffix = " (head)" if node.is_head and width >= 22 else ""
    room = width - 8 - len(suffix)
    name = fit(node.name, min(cell_len(node.name), room)) + suffix
    rest = corners[1] * (width - 7 - cell_len(name))
    return [
        (corners[0] + ("▸ " if is_chosen else corners[1] + " "), frame),
        (SYMBOLS[node.kind], _KIND_LOOKS[node.kind]),
        (f" {name} ", "title"),
        (rest + corners[2], frame),
    ]


def _full(node: NodeFacts, width: int) -> list[list[tuple[str, Look]]]:
    layers = f"layers {node.layer_words}" if node.layers else ""
    load = f"load {amounts.percent(node.load)}" if node.load is not None else ""
    if cell_len(node.state_in(width)) + len(load) >= width:
        load = ""  # the state matters more
    busy = _gauge("job", node.progress, width) if node.kind == "working" else _gauge("use", node.use, width)
    memory = None
    if node.memory_allowed and width >= _ROOMY:
        memory = f"{amounts.percent(node.memory_part)} of {amounts.size(node.memory_allowed)}"
    heat = amounts.temperature(node.temperature) if node.temperature is not None else ""
    return [
        [(both_ends(node.device, layers, width), "plain")],
        _state_row(node, load, width),
        _gauge("mem", node.memory_part, width, memory),
        busy,
        [(both_ends(heat, node.power_words, width), "dim")],
    ]


def _small(node: NodeFacts, width: int) -> list[list[tuple[str, Look]]]:
    where = " ".join(part for part in (node.device, node.layer_words) if part)
    busy = _busy(node) if width >= _ROOMY - 7 or node.kind == "working" else _busy(node).removeprefix("use ")
    memory = f"mem {amounts.percent(node.memory_part)}" if node.memory_part is not None else ""
    heat = amounts.temperature(node.temperature) if node.temperature is not None else ""
    room = width - cell_len(node.state_in(width)) - 1
    right = next((words for words in (f"{heat} {memory}".strip(), memory) if cell_len(words) <= room), "")
    return [[(both_ends(where, busy, width), "plain")], _state_row(node, right, width)]


def _busy(node: NodeFacts) -> str:
    """How far its work is, else how busy its stage is, in at most `_BUSY` cells."""
    if node.kind == "working":
        return "".join(bar(node.progress, _BUSY))
    return f"use {amounts.percent(node.use)}" if node.use is not None else ""


def _state_row(node: NodeFacts, right: str, width: int) -> list[tuple[str, Look]]:
    room = width - len(right) - 1 if right else width
    return [(fit(node.state_in(width), room), _KIND_LOOKS[node.kind]), (" " + right if right else "", "dim")]


def _gauge(name: str, part: float | None, width: int, words: str | None = None) -> list[tuple[str, Look]]:
    words = fit(amounts.percent(part), 5, right=True) if words is None else words
    full, empty = bar(part, width - len(name) - len(words) - 2)
    return [(f"{name} ", "dim"), (full, "bar"), (empty, "dim"), (f" {words}", "plain")]


def _node_line(node: NodeFacts, link: LinkFacts | None, width: int, is_chosen: bool) -> list[tuple[str, Look]]:
    """Name and state always, then what there is room for."""
    name = min(max(width // 5, 10), 22, width)
    state = min(max(width - name - 1, 0), 10)
    left = width - name - 1 - state
    extras = ""
    for text, cells in (
        (" ".join(part for part in (node.device, node.layer_words) if part), 11),
        (_busy(node), _BUSY),
        (f"mem {amounts.percent(node.memory_part)}" if node.memory_part is not None else "", 9),
        ("→ " + " ".join(link.words[:2]) if link and link.words else "", 21),
        (amounts.temperature(node.temperature) if node.temperature is not None else "", 6),
        (node.power_words, 14),
    ):
        if left > cells:
            extras += " " + fit(text, cells)
            left -= cells + 1
    state += min(max(left, 0), 30)
    return [
        (fit(node.name + (" (head)" if node.is_head else ""), name), "chosen" if is_chosen else "title"),
        (" " if state else "", "plain"),
        (fit(node.state_in(state), state), _KIND_LOOKS[node.kind]),
        (extras, "plain"),
    ]


def _rail(rail: Rail, steps: Iterable[tuple[float, str]], plain: Look) -> list[tuple[str, Look]]:
    """A cell with several steps says how many."""
    cells: Counter[int] = Counter()
    looks: dict[int, str] = {}
    for part, symbol in steps:
        cell = min(int(part * rail.width), rail.width - 1)
        cell = rail.width - 1 - cell if rail.backwards else cell
        cells[cell] += 1
        looks[cell] = symbol
    line = "━" if plain == "chosen" else "─"
    pieces: list[tuple[str, Look]] = []
    at = 0
    for cell, count in sorted(cells.items()):
        pieces.append((line * (cell - at), plain))
        pieces.append((looks[cell] if count == 1 else str(count) if count < 10 else "+", "mark"))
        at = cell + 1
    return [*pieces, (line * (rail.width - at), plain)]


def _caption(lines: Lines, caption: Caption, chain: ChainFacts) -> None:
    link = chain.links[caption.link]
    if caption.height == 1:
        _put(lines, caption.x, caption.y, *_turn_words(link, caption, is_return=caption.link == len(chain.nodes) - 1))
        return
    words = link.words[-caption.height :]
    for y, word in enumerate(words, caption.y + caption.height - len(words)):
        _put(lines, caption.x, y, (fit(word, caption.width), "dim"))
    _put(lines, caption.x - 1 + LINK_WIDTH - 1, caption.y + caption.height, ("▶", "rail"))


def _turn_words(link: LinkFacts, caption: Caption, *, is_return: bool) -> list[tuple[str, Look]]:
    words = _as_fits(("tokens to head", *link.words) if is_return else link.words, caption.width - 2)
    text = f" {words} " if words else ""
    return [(text, "dim"), ("─" * (caption.width - cell_len(text)), "rail")]


def _as_fits(parts: Sequence[str], width: int) -> str:
    """As many whole parts as fit."""
    for count in range(len(parts), 0, -1):
        if cell_len(text := " · ".join(parts[:count])) <= width:
            return text
    return ""


def _turn(lines: Lines, turn: Turn) -> None:
    _put(lines, turn.x, turn.y, ("◀" if turn.is_return else "╭", "rail"))
    _put(lines, turn.x + turn.width - 1, turn.y, ("╯", "rail"))
