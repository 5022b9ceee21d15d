"""What a terminal sends, made harmless where it is pasted text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from textual.driver import Driver
from textual.message import Message

_ESCAPE = "\x1b"
_START, _END = "\x1b[200~", "\x1b[201~"
_PARSER = "XTermParser"
"""As Textual's drivers call what reads for them."""
_STAND_IN = "\N{REPLACEMENT CHARACTER}"


class PasteGuard:
    """Takes escape characters out of pasted text.

    Most terminals do; from tmux and some others they come as they are. Textual would lose what follows one, and type
    the rest of the text as keys: each line's end would send it, and a control character in it could quit.
    """

    def __init__(self) -> None:
        self._is_pasted = False
        self._seen = ""
        """What came last, where it may be the beginning of a mark."""

    def __call__(self, data: str) -> str:
        """The same input, harmless; what may be the beginning of the mark at a paste's end comes with the next."""
        parts = []
        while data:
            both = self._seen + data
            if self._is_pasted:
                text, end, data = both.partition(_END)
                self._seen = "" if end else _beginning_of_end(text)
                parts += [text.removesuffix(self._seen).replace(_ESCAPE, _STAND_IN), end]
                self._is_pasted = not end
            else:  # nothing is kept back here: it may be the escape key
                before, start, after = both.partition(_START)
                parts.append((before + start)[len(self._seen) :])
                self._seen, data = ("" if start else both[1 - len(_START) :]), after
                self._is_pasted = bool(start)
        return "".join(parts)


def _beginning_of_end(text: str) -> str:
    """What the text ends with that may go on as the mark."""
    at = text.rfind(_ESCAPE, max(len(text) - len(_END), 0))
    return text[at:] if at >= 0 and _END.startswith(text[at:]) else ""


def guard_pastes(driver: type[Driver]) -> None:
    """Let a driver read through the guard; Textual has no other place for that."""
    module: Any = sys.modules[driver.__module__]
    make = getattr(module, _PARSER, None)
    if isinstance(make, type):  # not yet guarded
        setattr(module, _PARSER, partial(_guarded, make))


def _guarded(make: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """A parser that reads through a guard of its own."""
    parser, guard = make(*arguments, **named), PasteGuard()
    feed = parser.feed

    def feed_harmless(data: str) -> Iterable[Message]:
        harmless = guard(data)
        return feed(harmless) if harmless or not data else ()  # no data at all: it is the end

    parser.feed = feed_harmless
    return parser
