"""A modelled drafter: how often its guesses come true, and how long they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from pydantic import BaseModel, ConfigDict, Field

from pipeline.simulation.modelled_tail import made_up
from pipeline.speculation.drafter import MODEL, DrafterFacts, DraftText, Want


class DrafterModel(BaseModel):
    """A drafter by what it does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    acceptance: float = Field(ge=0, le=1, description="how often a guess is right, if those before it are")
    guess_ms: float = Field(0.0, ge=0, allow_inf_nan=False, description="of each guess behind another; 0: looked up")
    first_ms: float = Field(0.0, ge=0, allow_inf_nan=False, description="of the first one, before it")


@dataclass(slots=True)
class _Work:
    """What is drawn behind a text, and when each token of it is there."""

    start: int
    """Tokens of the text when it began."""
    drawn: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


class ModelledDrafter:
    """Knows what the modelled tail will sample, and guesses it as often as the model says. A Drafter.

    A guess that takes time is drawn behind the one before, all texts at the same time, as a batched draft model would;
    when a text has come otherwise, what is being drawn for it is finished first.

    Args:
        model: What it does.
        seed: Of which guesses are right.
    """

    def __init__(self, model: DrafterModel, seed: int) -> None:
        self.on_ready: Callable[[], None] = lambda: None
        self.now = 0.0
        """Milliseconds; moved on by the simulation."""
        self.due: float | None = None
        """When guesses are there that were asked for and are not yet; the simulation looks again then."""
        self._model, self._seed = model, seed
        self._texts: dict[str, _Work] = {}

    def guess(self, text: DraftText, count: int, want: Want = "all", piece: int = 1) -> Sequence[int] | None:
        """See Drafter."""
        model = self._model
        if not model.guess_ms:
            length = len(text.tokens) + len(text.guesses)
            return [self._guess(text.key, position) for position in range(length, length + count)]
        if want == "free":
            return ()
        work = self._worked_on(text)
        begin = len(text.tokens) + len(text.guesses) - work.start
        while len(work.drawn) < begin + count:
            before = max(self.now, work.times[-1]) if work.times else self.now + model.first_ms
            work.times.append(before + model.guess_ms)
            work.drawn.append(self._guess(text.key, work.start + len(work.drawn)))
        made = sum(time <= self.now for time in work.times[begin : begin + count])
        enough = min(piece, count) if want == "any" else count
        if made >= enough:
            return work.drawn[begin : begin + made]
        ready = work.times[begin + enough - 1]
        self.due = ready if self.due is None else min(self.due, ready)
        return None

    def _worked_on(self, text: DraftText) -> _Work:
        work = self._texts.get(text.key)
        begun = self.now
        if work is not None:
            known = [*text.tokens[work.start :], *text.guesses]
            if work.drawn[: len(known)] == known:
                return work
            begun = next((time for time in work.times if time > self.now), self.now)
        work = self._texts[text.key] = _Work(len(text.tokens) + len(text.guesses))
        if begun > self.now:  # as if it had been drawn first
            work.start -= 1
            work.drawn, work.times = [(*text.tokens, *text.guesses)[-1]], [begun + self._model.first_ms]
        return work

    def _guess(self, key: str, position: int) -> int:
        right = Random(f"{self._seed} {key} {position}").random() < self._model.acceptance
        return made_up(0, position) ^ (not right)

    def end(self, key: str, client: str, tokens: Sequence[int]) -> None:
        """See Drafter."""
        self._texts.pop(key, None)

    def kind(self, key: str) -> str:
        """See Drafter."""
        return MODEL

    def cost_ms(self, count: int) -> float:
        """See Drafter."""
        return self._model.first_ms + count * self._model.guess_ms if self._model.guess_ms else 0.0

    @property
    def facts(self) -> DrafterFacts:
        """See Drafter."""
        return DrafterFacts("modelled", None, len(self._texts), 0, self._model.guess_ms)

    def close(self) -> None:
        """See Drafter."""
