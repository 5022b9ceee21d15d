"""Which pastes go into the text, and which beside it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tui.chat.attachment import Attachment

LONGEST = 4000
MOST_LINES = 60
"""A paste beyond these would fill the composer, and slow it down; it goes beside the text, and is sent whole."""


def is_large(text: str) -> bool:
    """Whether a pasted text goes beside what is typed."""
    return len(text) > LONGEST or text.count("\n") + text.count("\r") > MOST_LINES


def as_attachment(text: str, others: Iterable[Attachment]) -> Attachment:
    """A pasted text, to go beside what is typed, under a name that none of the others has."""
    names = {other.name for other in others}
    number = next(number for number in range(1, len(names) + 2) if f"pasted text {number}" not in names)
    # terminals say a carriage return for the end of a line
    return Attachment(name=f"pasted text {number}", text=text.replace("\r\n", "\n").replace("\r", "\n"))
