"""Foreign text for cells and lines: cleaned, never markup, and as wide as there is room."""

from __future__ import annotations

from rich.text import Text

from tui.client.plain import one_line

_LONGEST = 400
"""Characters that are looked at; what shows is bounded by cells, which combining characters do not take up."""


def fitted(text: str, width: int | None = None, style: str = "") -> Text:
    """One line of at most `width` cells (wide characters take two), with an ellipsis where some is missing."""
    line = Text(one_line(text, _LONGEST if width is None else min(_LONGEST, 4 * width)), style)
    if width is not None:
        line.truncate(width, overflow="ellipsis")
    return line


def right(text: str, width: int) -> Text:
    """Our own text, to the right of a column."""
    return Text(text.rjust(width))
