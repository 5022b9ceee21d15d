"""Text from models, PCs and files, made harmless for a terminal."""

from __future__ import annotations

import re
import unicodedata

_DOUBTFUL = re.compile(r"[^\t\n -~\w]")
"""All but plain ASCII, letters and digits: these are looked at one by one."""
_STAND_IN = "\N{REPLACEMENT CHARACTER}"
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""They change the order in which what follows is drawn, so that a text can look like another."""


def clean(text: str) -> str:
    """The text without escape codes and other control characters; lines and tabs stay. A carriage return is a new line.

    What is drawn must further be given to Textual as `Text` or `Content`, or with markup off: square brackets stay.
    """
    if text.isascii() and text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _DOUBTFUL.sub(lambda found: found[0] if _is_harmless(found[0]) else _STAND_IN, text)


def one_line(text: str, width: int | None = None) -> str:
    """The text cleaned and on one line, at most `width` characters, with an ellipsis where some are missing."""
    line = " ".join(clean(text).split())
    if width is None or len(line) <= width:
        return line
    return line[: max(width - 1, 0)] + "…" if width > 0 else ""


def _is_harmless(character: str) -> bool:
    if character.isprintable():
        return True
    # zero-width joiners and the like are part of some scripts and of emoji; controls and surrogates are of none
    return unicodedata.category(character) in ("Cf", "Zs", "Zl", "Zp", "Co", "Cn") and character not in _DIRECTIONS
