"""Two drafters, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.speculation.drafter import Drafter, DrafterFacts, DraftText

_MEMORY = 0.98
"""What is kept of the share of guesses that are the second's when another is made."""


class Cascade:
    """Asks a drafter that costs nothing first, and where it has no guess another one.

    Args:
        first: Never works on anything: it answers at once.
        second: Asked where the first has no guess.
    """

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self._first, self._second = first, second
        self._share = 1.0
        """Of the guesses that the second had to make."""

    @property
    def on_ready(self) -> Callable[[], None]:
        """See Drafter."""
        return self._second.on_ready

    @on_ready.setter
    def on_ready(self, listener: Callable[[], None]) -> None:
        self._second.on_ready = listener

    def guess(self, text: DraftText, count: int) -> Sequence[int] | None:
        """See Drafter."""
        guesses = self._first.guess(text, count)
        if not guesses:
            guesses = self._second.guess(text, count)
            if guesses is None:
                return None  # it is asked again, and counted then
            self._share = _MEMORY * self._share + (1 - _MEMORY)
        else:
            self._share *= _MEMORY
        return guesses

    def end(self, key: str, client: str, tokens: Sequence[int]) -> None:
        """See Drafter."""
        self._first.end(key, client, tokens)
        self._second.end(key, client, tokens)

    def cost_ms(self, count: int) -> float:
        """See Drafter: the second's cost, as often as it is asked."""
        return self._share * self._second.cost_ms(count)

    @property
    def facts(self) -> DrafterFacts:
        """See Drafter; why the second is off, if it is: the first goes on."""
        first, second = self._first.facts, self._second.facts
        return DrafterFacts(
            f"{first.name}, then {second.name}",
            None if second.off is None else f"{second.name}: {second.off} ({first.name} goes on)",
            max(first.texts, second.texts),
            first.held_tokens + second.held_tokens,
            second.guess_ms,
        )

    def close(self) -> None:
        """See Drafter."""
        self._first.close()
        self._second.close()
