"""A drafter that knows the answers, for tests of the scheduler."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from simulated_chain import VOCABULARY, reference

from pipeline.messages import Request
from pipeline.speculation.drafter import MAX_GUESSES, MODEL, DrafterFacts, DraftText, Want


class PlantedDrafter:
    """Guesses by the reference, right as often as it is told, and is not always ready at once.

    Args:
        seed: Of what it does.
        chance: That a token it guesses is right.
        stages: Of the chain.
        patience: How often in a row it may say that it works on it.
        cost: Milliseconds that it says a guess takes.
        free: Where guesses take time, how often it has some all the same that don't.
    """

    def __init__(
        self, seed: int, chance: float, stages: int, patience: int = 0, cost: float = 0.0, free: float = 0.0
    ) -> None:
        self._pick, self._chance, self._stages, self._cost = random.Random(seed), chance, stages, cost
        self._patience, self._free = patience, free
        self._kind = "planted"
        self.on_ready = lambda: None
        self.requests: dict[str, Request] = {}
        self.waits: Counter[str] = Counter()
        """Of each text, times in a row that it was not ready."""
        self.ended: list[str] = []

    def guess(self, text: DraftText, count: int, want: Want = "all", piece: int = 1) -> list[int] | None:
        assert 1 <= count <= MAX_GUESSES and text.key not in self.ended
        self._kind = "planted" if want == "free" or not self._cost else MODEL
        if want == "free" and self._cost and self._pick.random() >= self._free:
            return []
        if want != "free" and self.waits[text.key] < self._patience and self._pick.random() < 0.5:
            self.waits[text.key] += 1
            return None
        del self.waits[text.key]
        wanted = self.requests[text.key]
        answer = reference(replace(wanted, stop_tokens=frozenset()), self._stages)
        assert list(text.tokens) == [*wanted.prompt, *answer][: len(text.tokens)]
        start = len(text.tokens) + len(text.guesses) - len(wanted.prompt)
        right = answer[start : start + self._pick.randint(0, count)]
        return [token if self._pick.random() < self._chance else (token + 1) % VOCABULARY for token in right]

    def end(self, key: str, client: str, tokens: Sequence[int]) -> None:
        assert key not in self.ended and self.requests[key].client == client
        self.ended.append(key)
        del self.waits[key]

    def kind(self, key: str) -> str:
        return self._kind

    def cost_ms(self, count: int) -> float:
        return count * self._cost

    @property
    def facts(self) -> DrafterFacts:
        return DrafterFacts("planted")

    def close(self) -> None:
        pass
