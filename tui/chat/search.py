"""Searching conversations. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from tui.chat.conversation import Conversation
from tui.client.plain import one_line

_BEFORE = 24
"""Characters of a line that an excerpt shows before what was found."""
_WIDTH = 160


@dataclass(frozen=True, slots=True)
class Hit:
    """A conversation that has what is looked for."""

    id: str
    title: str
    used: float
    excerpt: str
    """One line around the first find; empty if only the title has it."""
    turn: int | None
    """In which turn that is."""
    in_title: int
    """How many of the words the title has."""
    count: int
    """How often the words occur in the texts."""


def words_of(query: str) -> tuple[str, ...]:
    """What is looked for: words whose case doesn't matter."""
    return tuple(dict.fromkeys(folded(query).split()))


def folded(text: str) -> str:
    """The text without what makes no difference for a search."""
    return unicodedata.normalize("NFC", text).casefold()


def find(conversation: Conversation, words: tuple[str, ...]) -> Hit | None:
    """Look for words; each must be in the title or in one of the texts."""
    if not words:
        return None
    title = folded(conversation.title)
    missing = {word for word in words if word not in title}
    in_title, count, first, first_turn = len(words) - len(missing), 0, "", None
    for turn, text in conversation.texts():
        low = folded(text)
        found = [low.count(word) for word in words]
        if not any(found):
            continue
        count += sum(found)
        missing -= {word for word, times in zip(words, found, strict=True) if times}
        if not first:
            first, first_turn = text, turn
    if missing:
        return None
    excerpt = _excerpt(first, words) if first else ""
    return Hit(
        conversation.id, conversation.label, conversation.used, excerpt, first_turn, in_title=in_title, count=count
    )


def ranked(hits: Iterable[Hit]) -> list[Hit]:
    """Best first: more of the words in the title, then more finds, then last used."""
    return sorted(hits, key=lambda hit: (hit.in_title, hit.count, hit.used), reverse=True)


def _excerpt(text: str, words: tuple[str, ...]) -> str:
    """The line of the first find, from a little before it."""
    for line in unicodedata.normalize("NFC", text).splitlines():
        low = folded(line)
        places = [place for word in words if (place := low.find(word)) >= 0]
        if places:
            start = max(_unfolded(line, min(places)) - _BEFORE, 0)
            return one_line(("…" if start else "") + line[start : start + _WIDTH])
    return ""


def _unfolded(line: str, place: int) -> int:
    """Where in a line the place in its folded text is: some characters become several by folding."""
    length = 0
    for index, character in enumerate(line):
        if length >= place:
            return index
        length += len(character.casefold())
    return len(line)
