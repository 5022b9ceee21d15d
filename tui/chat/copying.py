"""What ctrl+y copies: the answer; pressed again, its code blocks one after the other. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tui.chat.markdown import Code


@dataclass(frozen=True, slots=True)
class Copied:
    """A text for the clipboard, and words for it."""

    text: str
    what: str


class CopyCycle:
    """Goes through an answer and its code blocks; another answer begins anew."""

    def __init__(self) -> None:
        self._of: object = None
        self._next = 0

    def take(self, of: object, text: str, codes: Sequence[Code]) -> Copied:
        """The next one.

        Args:
            of: The answer.
            text: What it says.
            codes: Its code blocks.
        """
        if self._of is not of or self._next > len(codes):
            self._of, self._next = of, 0
        number, self._next = self._next, self._next + 1
        further = f"; ctrl+y again: code block {number + 1} of {len(codes)}" if number < len(codes) else ""
        if number == 0:
            return Copied(text, f"the answer, {amount(text)}{further}")
        return Copied(
            codes[number - 1].text, f"{code_name(codes, number - 1)}, {amount(codes[number - 1].text)}{further}"
        )


def code_name(codes: Sequence[Code], number: int) -> str:
    """Words for a code block."""
    language = f" ({codes[number].language})" if codes[number].language else ""
    return f"code block {number + 1} of {len(codes)}{language}"


def amount(text: str) -> str:
    """How much a text is."""
    return f"{len(text):,} character{'s' * (len(text) != 1)}"
