"""What a transcript is made of: blocks that know their text, and the rows they come to at a width."""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

from textual.content import Content
from textual.strip import Strip

EMPTY = Content("")
MUTED = "$foreground-muted"
"""`$text-muted` has no alpha left when a Content is drawn."""
_NARROWEST = 8
"""However deep something is nested, so many columns are left for its text."""


class Row:
    """A line as it stands on the screen."""

    __slots__ = ("content", "fill", "look", "strip")

    def __init__(self, content: Content, fill: str = "") -> None:
        self.content = content
        self.fill = fill
        """Style over the whole width."""
        self.strip: Strip | None = None
        self.look = -1
        """For which width and theme `strip` was drawn; the transcript counts them."""

    def is_same(self, other: Row) -> bool:
        """Both look the same."""
        return self is other or (self.fill == other.fill and self.content.is_same(other.content))


class Block(Protocol):
    """A piece of a transcript that is laid out on its own."""

    def rows(self, width: int) -> list[Row]:
        """Its rows at a width in columns."""


class _KeptRows:
    """Keeps the rows of the last width."""

    def __init__(self) -> None:
        self._width, self._rows = 0, list[Row]()

    def rows(self, width: int) -> list[Row]:
        """Its rows at a width in columns."""
        if self._width != width:
            self._width, self._rows = width, self._lay_out(width)
        return self._rows

    def _lay_out(self, width: int) -> list[Row]:
        raise NotImplementedError


class TextBlock(_KeptRows):
    """Text.

    Args:
        content: What it says; may have several lines.
        first: Stands before its first row, e.g. a list's bullet.
        rest: Stands before the others.
        gap: A row that goes before it; blank, but for what stands before each row there. None: there is none.
        fill: Style over the whole width, e.g. a background.
        fold: Lines that are too long are broken anywhere (code), not between words.
    """

    def __init__(
        self,
        content: Content,
        first: Content = EMPTY,
        rest: Content = EMPTY,
        gap: Content | None = None,
        fill: str = "",
        fold: bool = False,
    ) -> None:
        super().__init__()
        self.content = content
        self._first, self._rest, self._gap, self._fill, self._fold = first, rest, gap, fill, fold

    def _lay_out(self, width: int) -> list[Row]:
        room = max(width - max(self._first.cell_length, self._rest.cell_length), _NARROWEST)
        lines = _folded(self.content, room) if self._fold else self.content.wrap(room)
        rows = [Row(self._gap)] if self._gap is not None else []
        rows.extend(
            Row((self._rest if number else self._first) + line, self._fill) for number, line in enumerate(lines)
        )
        return rows


class TableBlock(_KeptRows):
    """A table; its columns share the width that there is.

    Args:
        header: Cells of its first line.
        lines: Cells of the others, as many in each.
        rest: Stands before each row.
        gap: A row that goes before it; blank, but for what stands before each row there. None: there is none.
        before: The part of the same table that this one goes on from: its header is not shown again, and no column is
            narrower than there.
    """

    def __init__(
        self,
        header: list[Content],
        lines: list[list[Content]],
        rest: Content = EMPTY,
        gap: Content | None = None,
        before: TableBlock | None = None,
    ) -> None:
        super().__init__()
        self._header, self._lines, self._rest, self._gap, self._before = header, lines, rest, gap, before

    @cached_property
    def _wanted(self) -> list[int]:
        """The width of the widest cell of each column, up to here."""
        before = self._before._wanted if self._before is not None else [0] * len(self._header)
        cells = zip(self._header, *self._lines, strict=True)
        return [max(least, *(cell.cell_length for cell in column)) for least, column in zip(before, cells, strict=True)]

    def _lay_out(self, width: int) -> list[Row]:
        columns = len(self._header)
        room = max(width - self._rest.cell_length - 3 * (columns - 1), columns)
        widths = share(self._wanted, room)
        rows = [Row(self._gap)] if self._gap is not None else []
        if self._before is None:
            rows.extend(self._line(self._header, widths))
            rows.append(Row(self._rest + Content.styled("─┼─".join("─" * width for width in widths), MUTED)))
        for line in self._lines:
            rows.extend(self._line(line, widths))
        return rows

    def _line(self, cells: list[Content], widths: list[int]) -> list[Row]:
        columns = [
            [cell] if cell.cell_length <= width and "\n" not in cell.plain else cell.wrap(width)
            for cell, width in zip(cells, widths, strict=True)
        ]
        bar = Content.styled(" │ ", MUTED)
        rows = []
        for number in range(max(map(len, columns))):
            texts = [(column[number] if number < len(column) else EMPTY).rstrip() for column in columns]
            padded = [text.pad_right(width - text.cell_length) for text, width in zip(texts, widths, strict=True)]
            rows.append(Row(self._rest + bar.join(padded)))
        return rows


def share(wanted: list[int], room: int) -> list[int]:
    """Widths of columns that want so much and have `room` together: the widest give first, none gets less than 1."""
    widths = [max(width, 1) for width in wanted]
    excess = sum(widths) - room
    while excess > 0 and max(widths) > 1:
        widest = max(widths)
        next_widest = max((width for width in widths if width < widest), default=1)
        at_widest = [column for column, width in enumerate(widths) if width == widest]
        step = max(min(widest - next_widest, excess // len(at_widest)), 1)
        for column in at_widest:
            taken = min(step, excess)
            widths[column] -= taken
            excess -= taken
    return widths


def _folded(content: Content, width: int) -> list[Content]:
    return [part for line in content.split(allow_blank=True) for part in line.fold(width)]
