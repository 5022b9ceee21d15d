"""Text cut to terminal cells: a character may take none, one or two of them. Pure."""

from __future__ import annotations

from rich.cells import cell_len, split_graphemes


def fit(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly `width` cells: padded with blanks, or cut with an ellipsis at the end.

    Args:
        text: One line without control characters.
        width: Cells.
        right: Pad on the left.
    """
    if width <= 0:
        return ""
    length = cell_len(text)
    if length > width:
        text, length = _cut(text, width - 1)
        text, length = text + "…", length + 1
    blanks = " " * (width - length)
    return blanks + text if right else text + blanks


def both_ends(left: str, right: str, width: int) -> str:
    """Two texts at the ends of `width` cells; the right one is kept whole if it leaves room for some of the left."""
    needed = cell_len(right)
    if not right or needed + 4 > width:
        return fit(left, width)
    return fit(left, width - needed - 1) + " " + right


def _cut(text: str, width: int) -> tuple[str, int]:
    """The longest beginning of at most `width` cells, and its cells."""
    end = taken = 0
    for _, after, cells in split_graphemes(text)[0]:
        if taken + cells > width:
            break
        end, taken = after, taken + cells
    return text[:end], taken
