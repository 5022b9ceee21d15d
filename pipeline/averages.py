"""Where the time of steps goes: medians of the last ones. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

from pipeline.messages import StageTiming

_STEPS = 64
"""How many steps count. The median, so that the few with a prompt in them don't hide what a token costs."""


class Averages:
    """Medians over the last steps, in microseconds; 0 or no stages before the first."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, tuple[StageTiming, ...]]] = deque(maxlen=_STEPS)
        """(time on the wire, of each stage)."""
        self._head: deque[tuple[float, float]] = deque(maxlen=_STEPS)
        """(head, listeners)."""
        self._intervals: deque[float] = deque(maxlen=_STEPS)
        self._last = 0.0

    def add_step(self, now: float, seconds: float, stages: tuple[StageTiming, ...]) -> None:
        """A step has come back at `now`, after `seconds`."""
        if self._last:
            self._intervals.append(1e6 * (now - self._last))
        self._last = now
        self._steps.append((1e6 * seconds - sum(t.queued + t.compute for t in stages), stages))

    def add_head(self, results: int, head: float, listeners: float) -> None:
        """The head has spent seconds on a number of results, and its listeners on their events."""
        self._head.append((1e6 * head / results, 1e6 * listeners / results))

    @property
    def stages(self) -> tuple[StageTiming, ...]:
        """Of each stage."""
        return tuple(
            StageTiming(
                wait=median(t.wait for t in timings),
                compute=median(t.compute for t in timings),
                send=median(t.send for t in timings),
                queued=median(t.queued for t in timings),
            )
            for timings in zip(*(stages for _, stages in self._steps), strict=True)
        )

    @property
    def interval(self) -> float:
        """From a step's return to the next one's."""
        return median(self._intervals) if self._intervals else 0.0

    @property
    def wire(self) -> float:
        """Between the stages' work: encoding, sockets and checks of every leg."""
        return median(wire for wire, _ in self._steps) if self._steps else 0.0

    @property
    def head(self) -> float:
        """The head's own."""
        return median(head for head, _ in self._head) if self._head else 0.0

    @property
    def listeners(self) -> float:
        """Of handing out events."""
        return median(listeners for _, listeners in self._head) if self._head else 0.0
