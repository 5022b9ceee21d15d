"""Two drafters, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.speculation.drafter import Drafter, DrafterFacts, DraftText, Want


class Cascade:
    """Asks a drafter that costs nothing for free guesses, and another one for the rest.

    Args:
        first: Answers at once.
        second: Takes its time.
    """

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self._first, self._second = first, second
        self._chosen = first
        """Made the latest guess."""

    @property
    def on_ready(self) -> Callable[[], None]:
        """See Drafter."""
        return self._second.on_ready

    @on_ready.setter
    def on_ready(self, listener: Callable[[], None]) -> None:
        self._second.on_ready = listener

    def guess(self, text: DraftText, count: int, want: Want = "all", piece: int = 1) -> Sequence[int] | None:
        """See Drafter."""
        self._chosen = self._first if want == "free" else self._second
        return self._chosen.guess(text, count, want, piece)

    def kind(self, key: str) -> str:
        """See Drafter; asked right after a guess."""
        return self._chosen.kind(key)

    def end(self, key: str, client: str, tokens: Sequence[int]) -> None:
        """See Drafter."""
        self._first.end(key, client, tokens)
        self._second.end(key, client, tokens)

    def cost_ms(self, count: int) -> float:
        """See Drafter: the second's."""
        return self._second.cost_ms(count)

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
            second.node,
        )

    def close(self) -> None:
        """See Drafter."""
        self._first.close()
        self._second.close()
