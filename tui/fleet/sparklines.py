"""The last minutes of the fleet as curves."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tui.client.history import History
from tui.client.state import Fleet
from tui.fleet.cells import fit
from tui.fleet.spark_text import Curve, curve, curves

_COLUMN = 38
"""Cells from which rows stand in two columns or more."""
_LABEL, _WORDS = 10, 6
_WIDE_LABEL = 18


class Sparklines(Widget):
    """A row each for tok/s, queue, running requests and the use of each node; the newest number stands beside it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"sparklines--label", "sparklines--curve", "sparklines--words"}

    DEFAULT_CSS = """
    Sparklines {
        height: 2;
        & > .sparklines--label { color: $text-muted; }
        & > .sparklines--curve { color: $accent; }
        & > .sparklines--words { text-style: bold; }
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._curves: list[Curve] = []
        self._drawn: list[tuple[tuple[str, str, str], ...]] = []

    def show_fleet(self, fleet: Fleet, history: History) -> None:
        """Draw the newest numbers."""
        self._curves = curves(fleet, history)
        self._draw()

    def on_resize(self) -> None:
        """Draw to the new width."""
        self._draw()

    def render_line(self, y: int) -> Strip:
        """One line of curves."""
        width = self.size.width
        label, line, words = (
            self.get_component_rich_style(f"sparklines--{name}") for name in ("label", "curve", "words")
        )
        if y >= len(self._drawn):
            return Strip.blank(width, label)
        segments: list[Segment] = []
        for texts in self._drawn[y]:
            segments += [Segment(text, look) for text, look in zip(texts, (label, line, words), strict=True)]
        return Strip(segments).adjust_cell_length(width, label)

    def _draw(self) -> None:
        width, height = self.size
        lines = self._lines(width, height)
        changed = [y for y in range(height) if lines[y : y + 1] != self._drawn[y : y + 1]]
        self._drawn = lines
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def _lines(self, width: int, height: int) -> list[tuple[tuple[str, str, str], ...]]:
        """Curves in lines, those that have no room counted at the end."""
        columns = max(width // _COLUMN, 1) if height < len(self._curves) else 1
        room = columns * height
        rows, rest = self._curves, 0
        if len(rows) > room > 0:
            kept = max(room - 1, 1) if height > 2 else room
            rows, rest = rows[:kept], len(rows) - kept
        cell = width // columns
        texts = [self._texts(row, cell) for row in rows]
        if rest and height > 2:
            texts.append((fit(f"+{rest} more", cell), "", ""))
        return [tuple(texts[start : start + columns]) for start in range(0, len(texts), columns)]

    def _texts(self, row: Curve, width: int) -> tuple[str, str, str]:
        label = min(_WIDE_LABEL if width >= 50 else _LABEL, max(width - _WORDS, 0))
        words = min(_WORDS, width - label)
        line = max(width - label - words - 2, 0)
        return (
            fit(row.label, label) + " " * min(1, width - label - words),
            curve(row.values, line, row.top),
            fit(row.words, words, right=True) + " " * max(width - label - words - line - 1, 0),
        )
