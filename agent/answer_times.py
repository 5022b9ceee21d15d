"""When the tokens of answers come, and where the time goes that makes them. Pure."""

from __future__ import annotations

from pipeline.averages import LastSteps


class AnswerTimes:
    """The times of one call, whose answers may be several.

    Args:
        now: When it began; by one clock, in seconds, like all times here.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._first: float | None = None
        self._last = now
        self._later = 0
        """Tokens after the first lot."""
        self._steps: LastSteps | None = None

    def add(self, now: float, tokens: int) -> bool:
        """Tokens have come, or none; whether they are the first."""
        if not tokens:
            return False
        self._last = now
        if self._first is not None:
            self._later += tokens
            return False
        self._first = now
        return True

    def end(self, now: float, steps: LastSteps | None) -> None:
        """An answer has ended, and this is what the chain's steps took that made it."""
        if self._first is None:
            self._first = now
        if steps is not None:
            self._steps = steps.over(now - self._first)

    def since_begin(self, now: float) -> float:
        """Seconds."""
        return now - self._began

    @property
    def first_token(self) -> float:
        """Seconds until the first token, or until the end of an answer that has none."""
        return (self._last if self._first is None else self._first) - self._began

    @property
    def tokens_per_second(self) -> float | None:
        """Of all answers together, after the first token; None if no more came."""
        if self._first is None or not self._later or self._last <= self._first:
            return None
        return self._later / (self._last - self._first)

    @property
    def steps(self) -> LastSteps | None:
        """The steps since the first token, as far back as they are known; None if no chain has finished an answer."""
        return self._steps
