"""A chain's draft model, wherever in the fleet it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pipeline.speculation.drafter import Drafter, DrafterFacts, DraftText, Want


class PlacedDraft:
    """A draft model that may give way to another one, on another node, while answers are made; see Drafter.

    Args:
        size: Bytes it takes on its node: weights and KV cache, without the engine's own buffers.
        model: The first one.
    """

    def __init__(self, size: int, model: Drafter) -> None:
        self.size, self._model = size, model
        self._on_ready: Callable[[], None] = lambda: None
        self._is_closed = False
        self._lock = threading.Lock()
        """Held to put another one in its place, and to prevent it."""

    @property
    def node(self) -> str | None:
        """Key of the node that it runs on, or ran on until it failed; None if there is none."""
        return self._model.facts.node

    @property
    def memory(self) -> int:
        """Bytes it takes there now: none once it guesses no more."""
        return 0 if self._is_closed or self._model.facts.off is not None else self.size

    def change(self, model: Drafter) -> bool:
        """Put another one in its place, and end the old one, from any thread but the head's; False if it is closed.

        The head asks the new one for what the old one was asked for. Whichever is not needed is closed.
        """
        with self._lock:
            is_wanted = not self._is_closed
            if is_wanted:
                model.on_ready = self._on_ready
                self._model, model = model, self._model
        if is_wanted:
            self._on_ready()
        model.close()
        return is_wanted

    @property
    def on_ready(self) -> Callable[[], None]:
        """See Drafter."""
        return self._on_ready

    @on_ready.setter
    def on_ready(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._on_ready = self._model.on_ready = listener

    def guess(self, text: DraftText, count: int, want: Want = "all", piece: int = 1) -> Sequence[int] | None:
        """See Drafter."""
        return self._model.guess(text, count, want, piece)

    def kind(self, key: str) -> str:
        """See Drafter."""
        return self._model.kind(key)

    def end(self, key: str, client: str, tokens: Sequence[int]) -> None:
        """See Drafter."""
        self._model.end(key, client, tokens)

    def cost_ms(self, count: int) -> float:
        """See Drafter."""
        return self._model.cost_ms(count)

    @property
    def facts(self) -> DrafterFacts:
        """See Drafter."""
        return self._model.facts

    def close(self) -> None:
        """See Drafter."""
        with self._lock:
            self._is_closed = True
        self._model.close()
