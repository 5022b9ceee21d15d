"""How long work reports itself: a callback, so that whoever shows it (a bar, a socket, nothing) decides how."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float, float], None]
"""Called with (what is being done, done so far, total); units are the caller's, `done == total` ends it."""


def silent(what: str, done: float, total: float) -> None:
    """Report to nobody."""
