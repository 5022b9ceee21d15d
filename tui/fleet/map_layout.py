"""Where everything on the map goes, for a number of nodes and an area. Pure; the words are not its business.

A chain is a row of boxes, which wraps; where that takes too much height, smaller boxes, then a line a node. The bottom
of a box and the links are one rail, on which steps travel.

    ╭─ pc-1 ───────╮            ╭─ pc-2 ───────╮
    │              │  caption   │              │
    ╰──────────────╯───────────▶╰──────────────╯
     ╭ caption ────────────────────────────────╯      wraps to the next row, or goes back to the head
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Form = Literal["full", "small", "line"]

LINK_WIDTH = 11
HEIGHTS: dict[Form, int] = {"full": 7, "small": 4, "line": 1}
_SMALLER: dict[Form, Form] = {"full": "small", "small": "line", "line": "line"}
"""What carries nothing is drawn a size smaller."""
_GAP = 1
"""Between boxes that no link joins."""
_RAILS_FROM = 40
"""A line that is narrower has no place for a rail."""
_STAGE_RAIL, _LINK_RAIL = 5, 3
_SHORTEST_RAIL = 4
_INSET = 2
"""Cells of a line for its symbols."""
_LEAST_WIDTH = 12
"""What is narrower is cut off at the right."""
_CHOICES: tuple[tuple[Form, int], ...] = (("full", 25), ("small", 26), ("small", 18), ("line", _LEAST_WIDTH))
"""Forms, and the least width of a box: the roomiest first. More boxes in a row take fewer lines, but say less."""
_WIDEST: dict[Form, int] = {"full": 36, "small": 30, "line": 10_000}


@dataclass(frozen=True, slots=True)
class Box:
    """Where a node is drawn."""

    group: int
    """Number of its chain; after the chains come those that carry nothing."""
    index: int
    form: Form
    x: int
    y: int
    width: int
    height: int
    inset: int = 0
    """Cells of a line before its words."""


@dataclass(frozen=True, slots=True)
class Rail:
    """Cells on which a step of a chain is, while it is on a leg of its way: stage 0, link 0, stage 1, link 1, ..."""

    group: int
    leg: int
    x: int
    y: int
    width: int
    backwards: bool = False


@dataclass(frozen=True, slots=True)
class Caption:
    """Where a link's words are: `height` lines of `width` cells."""

    group: int
    link: int
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Turn:
    """A line from under the last box of a row to the left; `x` is its first cell."""

    group: int
    x: int
    y: int
    width: int
    is_return: bool
    """To the head, not to the next row."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The map's plan; x and y are cells from its upper left corner."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    rails: tuple[Rail, ...] = ()
    captions: tuple[Caption, ...] = ()
    turns: tuple[Turn, ...] = ()
    headings: tuple[tuple[int, int], ...] = ()
    """Group and y of each."""

    def below(self, bottom: int) -> int:
        """How many nodes are not whole above a line."""
        return sum(box.y + box.height > bottom for box in self.boxes)

    def at(self, x: int, y: int) -> Box | None:
        """The box that covers a cell."""
        for box in self.boxes:
            if box.x <= x < box.x + box.width and box.y <= y < box.y + box.height:
                return box
        return None


def lay_out(chains: Sequence[int], idle: int, width: int, height: int) -> Layout:
    """The roomiest plan that fits, else the tightest one, which is then higher than the area.

    Args:
        chains: Number of nodes of each chain.
        idle: Number of nodes that carry nothing.
        width: Cells.
        height: Lines.
    """
    width = max(width, _LEAST_WIDTH)
    for form, least in _CHOICES[:-1]:
        if width >= least:
            layout = _Draft(width, form, least).finish(chains, idle)
            if layout.height <= height:
                return layout
    return _Draft(width, *_CHOICES[-1]).finish(chains, idle)


class _Draft:
    def __init__(self, width: int, form: Form, least: int) -> None:
        self._width, self._form, self._least, self._y = width, form, least, 0
        self._boxes: list[Box] = []
        self._rails: list[Rail] = []
        self._captions: list[Caption] = []
        self._turns: list[Turn] = []
        self._headings: list[tuple[int, int]] = []

    def finish(self, chains: Sequence[int], idle: int) -> Layout:
        for group, nodes in enumerate(chains):
            self._head(group)
            if self._form == "line":
                self._chain_of_lines(group, nodes)
            else:
                self._chain_of_boxes(group, nodes)
        if idle or not chains:
            self._head(len(chains))
            self._apart(len(chains), idle, _SMALLER[self._form])
        return Layout(
            self._width,
            self._y,
            tuple(self._boxes),
            tuple(self._rails),
            tuple(self._captions),
            tuple(self._turns),
            tuple(self._headings),
        )

    def _head(self, group: int) -> None:
        self._headings.append((group, self._y))
        self._y += 1

    def _chain_of_lines(self, group: int, nodes: int) -> None:
        for index in range(nodes):
            has_rail = self._width >= _RAILS_FROM
            inset = _INSET + (_STAGE_RAIL + _LINK_RAIL + 1 if has_rail else 0)
            self._boxes.append(Box(group, index, "line", 0, self._y, self._width, 1, inset))
            if has_rail:
                self._rails.append(Rail(group, 2 * index, _INSET, self._y, _STAGE_RAIL))
                self._rails.append(Rail(group, 2 * index + 1, _INSET + _STAGE_RAIL, self._y, _LINK_RAIL))
            self._y += 1

    def _chain_of_boxes(self, group: int, nodes: int) -> None:
        height = HEIGHTS[self._form]
        for row in self._rows(nodes, self._form, LINK_WIDTH):
            placed = [Box(group, index, self._form, x, self._y, width, height) for index, x, width in row]
            rail = self._y + height - 1
            for box in placed:
                self._rails.append(Rail(group, 2 * box.index, box.x + 1, rail, box.width - 2))
            for box in placed[:-1]:
                right = box.x + box.width
                self._captions.append(Caption(group, box.index, right + 1, self._y, LINK_WIDTH - 2, height - 1))
                # the last cell is the arrow's head
                self._rails.append(Rail(group, 2 * box.index + 1, right, rail, LINK_WIDTH - 1))
            self._boxes += placed
            self._turn(placed, placed[-1].index == nodes - 1)
            self._y += height + 1

    def _turn(self, row: Sequence[Box], is_return: bool) -> None:
        first, last = row[0], row[-1]
        x, y, width = first.x + 1, last.y + last.height, last.x + last.width - first.x - 2
        self._turns.append(Turn(last.group, x, y, width, is_return))
        inside = width - 2
        caption = max(min(inside - _SHORTEST_RAIL, 40), 0)
        self._captions.append(Caption(last.group, last.index, x + 1, y, caption, 1))
        self._rails.append(Rail(last.group, 2 * last.index + 1, x + 1 + caption, y, inside - caption, backwards=True))

    def _apart(self, group: int, nodes: int, form: Form) -> None:
        for row in self._rows(nodes, form, _GAP):
            inset = _INSET if form == "line" else 0
            self._boxes += [Box(group, index, form, x, self._y, width, HEIGHTS[form], inset) for index, x, width in row]
            self._y += HEIGHTS[form]

    def _rows(self, nodes: int, form: Form, gap: int) -> Iterator[list[tuple[int, int, int]]]:
        """Rows of about equal length: index, x and width of each box."""
        if not nodes:
            return
        columns = 1 if form == "line" else max((self._width + gap) // (self._least + gap), 1)
        columns = -(-nodes // -(-nodes // columns))
        width = min(_WIDEST[form], (self._width - (columns - 1) * gap) // columns)
        for start in range(0, nodes, columns):
            indices = range(start, min(start + columns, nodes))
            yield [(index, (index - start) * (width + gap), width) for index in indices]
