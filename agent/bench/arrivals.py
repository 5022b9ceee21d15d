"""When users ask: pure, so that every side of a comparison is asked alike, in whatever process it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from random import Random
from typing import Any, Protocol


class Arrivals(Protocol):
    """Decides when questions are asked. Times are seconds from the beginning and never go back."""

    def take(self, now: float) -> list[float]:
        """The questions to ask now: when each of them was due."""
        ...

    def answered(self) -> None:
        """An answer has ended."""
        ...

    @property
    def next(self) -> float | None:
        """When the next question is due by the clock alone; None: it waits for an answer, or there is none."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether all questions have been asked."""
        ...


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Users who ask again as soon as they are answered. Each asks at least once."""

    users: int
    questions: int | None = None
    """Of all users together."""
    seconds: float | None = None
    """Instead of a number of questions: none is asked later than this."""

    def __post_init__(self) -> None:
        if (self.questions is None) == (self.seconds is None):
            raise ValueError("a closed loop ends after a number of questions or seconds")

    def begin(self) -> Arrivals:
        """All users are about to ask."""
        return _ClosedLoop(self)


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent users: questions come at a rate, whether or not earlier ones are answered."""

    rate: float
    """Questions a second, on average."""
    questions: int
    seed: int = 0
    """The same seed gives the same times."""

    def begin(self) -> Arrivals:
        """Nobody has asked yet."""
        return _Poisson(self)


Traffic = ClosedLoop | Poisson
_KINDS: dict[str, type[ClosedLoop | Poisson]] = {kind.__name__: kind for kind in (ClosedLoop, Poisson)}


def to_json(traffic: Traffic) -> dict[str, Any]:
    """Traffic as JSON data, for another process."""
    return {"kind": type(traffic).__name__, **asdict(traffic)}


def from_json(data: Mapping[str, Any]) -> Traffic:
    """The inverse of `to_json`."""
    fields = dict(data)
    return _KINDS[fields.pop("kind")](**fields)


class _ClosedLoop:
    def __init__(self, plan: ClosedLoop) -> None:
        self._plan = plan
        self._idle, self._asked = plan.users, 0
        self._is_late = False

    def take(self, now: float) -> list[float]:
        count, plan = self._idle, self._plan
        if self._asked and plan.questions is not None:
            count = min(count, max(0, plan.questions - self._asked))
        self._is_late = plan.seconds is not None and now >= plan.seconds
        if self._asked and self._is_late:
            count = 0
        self._asked += count
        self._idle -= count
        return [now] * count

    def answered(self) -> None:
        self._idle += 1

    @property
    def next(self) -> float | None:
        return None

    @property
    def is_over(self) -> bool:
        enough = self._plan.questions is not None and self._asked >= self._plan.questions
        return self._asked > 0 and (enough or self._is_late)


class _Poisson:
    def __init__(self, plan: Poisson) -> None:
        random = Random(plan.seed)
        self._due = deque(accumulate(random.expovariate(plan.rate) for _ in range(plan.questions)))

    def take(self, now: float) -> list[float]:
        taken: list[float] = []
        while self._due and self._due[0] <= now:
            taken.append(self._due.popleft())
        return taken

    def answered(self) -> None:
        pass

    @property
    def next(self) -> float | None:
        return self._due[0] if self._due else None

    @property
    def is_over(self) -> bool:
        return not self._due
