"""Bars of characters, with eighths of a cell. Pure."""

from __future__ import annotations

import math

_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(part: float | None, width: int) -> tuple[str, str]:
    """A horizontal bar: its full and its empty piece, together `width` cells.

    Args:
        part: 0 to 1, cut to that; None, or no number: nobody knows, the bar is empty.
        width: Cells.
    """
    width = max(width, 0)
    if part is None or not math.isfinite(part):
        return "", "·" * width
    eighths = round(min(max(part, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    filled = "█" * full + (_EIGHTHS[rest] if rest else "")
    return filled, "░" * (width - len(filled))
