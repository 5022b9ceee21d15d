"""Where the time of steps goes: a log of the last ones, and what it comes to. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TypeVar

from pipeline.messages import StageTiming

_T = TypeVar("_T")

_STEPS = 64
"""How many steps count. The median, so that the few with a prompt in them don't hide what a token costs."""

_USE_SECONDS = 3.0
"""The stretch of time that `use` is about; shorter where the log does not reach back so far."""

_Step = tuple[float, float, tuple[StageTiming, ...]]
"""(when it came back, how long it took, of each stage); seconds."""
_Turn = tuple[int, float, float]
"""(results, seconds of the head for them, seconds of the listeners)."""


@dataclass(frozen=True, slots=True)
class LastSteps:
    """The last steps of a chain. Times are medians in microseconds, worked out when they are asked for."""

    chain: int
    """Number of the chain."""
    time: float
    """When this was written down, by the clock of the steps."""
    steps: tuple[_Step, ...]
    """Oldest first."""
    turns: tuple[_Turn, ...]

    def over(self, seconds: float) -> LastSteps:
        """Those that came back in the last seconds; all if none did."""
        within = tuple(step for step in self.steps if self.time - step[0] <= seconds)
        return replace(self, steps=within or self.steps)

    @property
    def stages(self) -> tuple[StageTiming, ...]:
        """Of each stage; none before the first step."""
        return tuple(
            StageTiming(
                wait=median(t.wait for t in timings),
                compute=median(t.compute for t in timings),
                send=median(t.send for t in timings),
                queued=median(t.queued for t in timings),
            )
            for timings in self._by_stage
        )

    @property
    def use(self) -> tuple[float, ...]:
        """The part of the last seconds in which each stage computed, 0 to 1."""
        begin = self.time - _USE_SECONDS
        if len(self.steps) == _STEPS:
            begin = max(begin, self.steps[0][0])
        span = max(self.time - begin, 1e-9)
        # a step is taken to have been computed just before it came back
        left = [max(0.0, back - begin) for back, _, _ in self.steps]
        return tuple(
            min(1.0, sum(min(1e-6 * t.compute, most) for t, most in zip(timings, left, strict=True)) / span)
            for timings in self._by_stage
        )

    @property
    def traversal(self) -> float:
        """A step's way round."""
        return _median(self.steps, lambda step: 1e6 * step[1])

    @property
    def wire(self) -> float:
        """A step's way round less the stages' work and queues: encoding, sockets and checks of every leg."""
        return _median(self.steps, lambda step: 1e6 * step[1] - sum(t.queued + t.compute for t in step[2]))

    @property
    def interval(self) -> float:
        """From a step's return to the next one's."""
        returns = [back for back, _, _ in self.steps]
        return _median(list(pairwise(returns)), lambda pair: 1e6 * (pair[1] - pair[0]))

    @property
    def head(self) -> float:
        """From a result's arrival until the next steps are on their way."""
        return _median(self.turns, lambda turn: 1e6 * turn[1] / turn[0])

    @property
    def listeners(self) -> float:
        """Handing out the events of a step, after that."""
        return _median(self.turns, lambda turn: 1e6 * turn[2] / turn[0])

    @property
    def _by_stage(self) -> list[tuple[StageTiming, ...]]:
        return list(zip(*(stages for _, _, stages in self.steps), strict=True))


class StepLog:
    """Keeps the last steps of a chain.

    Args:
        chain: Number of the chain.
    """

    def __init__(self, chain: int) -> None:
        self._chain = chain
        self._steps: deque[_Step] = deque(maxlen=_STEPS)
        self._turns: deque[_Turn] = deque(maxlen=_STEPS)

    def add_step(self, now: float, seconds: float, stages: tuple[StageTiming, ...]) -> None:
        """A step has come back at `now`, after `seconds`."""
        self._steps.append((now, seconds, stages))

    def add_turn(self, results: int, head: float, listeners: float) -> None:
        """The head has spent seconds on a number of results, and its listeners on their events."""
        self._turns.append((results, head, listeners))

    def last(self, now: float) -> LastSteps:
        """The last steps as they stand at `now`."""
        return LastSteps(self._chain, now, tuple(self._steps), tuple(self._turns))


def _median(entries: Sequence[_T], value: Callable[[_T], float]) -> float:
    """0 if there are no entries."""
    return median(map(value, entries)) if entries else 0.0
