"""Guesses by looking up what followed the same words before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.speculation.drafter import DrafterFacts, DraftText, Want
from pipeline.speculation.history import History
from pipeline.speculation.token_index import TokenIndex

HISTORY_TOKENS = 100_000
"""Tokens of texts that have ended; some 20 MB."""

LEAST, LONGEST = 3, 16
"""Tokens at the end of a text that are looked for in it. What follows two is right half of the time, which would spoil
the good name of what follows more."""


class NgramDrafter:
    """Copies what followed the longest run of tokens that ends the text now and has occurred in it before.

    If a longer one has occurred in an earlier text of the same client, what followed there. After Saxena's prompt
    lookup decoding (2023), with the answer and earlier texts searched too.

    Args:
        history_tokens: Bound of what is remembered of texts that have ended.
    """

    def __init__(self, history_tokens: int = HISTORY_TOKENS) -> None:
        self.on_ready: Callable[[], None] = lambda: None
        self._history = History(history_tokens)
        self._texts: dict[str, TokenIndex] = {}
        self._matched: dict[str, int] = {}
        """How many tokens were the same where the latest guess of a text comes from."""

    def guess(self, text: DraftText, count: int, want: Want = "all", piece: int = 1) -> Sequence[int]:
        """See Drafter; it is never working on anything."""
        index = self._texts.get(text.key)
        if index is None:
            index = self._texts[text.key] = TokenIndex(LEAST)
        index.extend(text.tokens[len(index) :])
        run = [*text.tokens[-LONGEST:], *text.guesses][-LONGEST:]
        place, length = index.find(run)
        if length < LONGEST:
            found, longer = self._history.find(text.client, run, count)
            if longer > length:
                self._matched[text.key] = longer
                return found
        self._matched[text.key] = length
        return self._copied(text, index, place, count) if length else ()

    def end(self, key: str, client: str, tokens: Sequence[int]) -> None:
        """See Drafter."""
        self._texts.pop(key, None)
        self._matched.pop(key, None)
        self._history.add(client, tokens)

    def kind(self, key: str) -> str:
        """See Drafter: by how much was the same, roughly."""
        return f"n-gram {self._matched.get(key, 0).bit_length()}"

    def cost_ms(self, count: int) -> float:
        """See Drafter."""
        return 0.0

    @property
    def facts(self) -> DrafterFacts:
        """See Drafter."""
        return DrafterFacts("n-gram", None, len(self._texts), self._history.held)

    def close(self) -> None:
        """See Drafter."""

    @staticmethod
    def _copied(text: DraftText, index: TokenIndex, place: int, count: int) -> list[int]:
        """Tokens from a place of the text on; behind its end follow its guesses, then the copied ones themselves."""
        copied, guessed = index.after(place, count), len(text.guesses)
        for i in range(count - len(copied)):
            copied.append(text.guesses[i] if i < guessed else copied[i - guessed])
        return copied
