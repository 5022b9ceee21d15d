"""Moving averages of where the time of steps goes. Pure."""

from __future__ import annotations

from pipeline.messages import StageTiming

_SMOOTHING = 0.05
"""Weight of the newest step."""


class Averages:
    """Moving averages, in microseconds; the first value counts as the average so far."""

    def __init__(self) -> None:
        self.stages: tuple[StageTiming, ...] = ()
        self.wire = self.head = self.listeners = 0.0

    def add_step(self, seconds: float, stages: tuple[StageTiming, ...]) -> None:
        """A step has come back after `seconds`."""
        wire = 1e6 * seconds - sum(t.queued + t.compute + t.send for t in stages)
        if len(stages) != len(self.stages):
            self.stages, self.wire = stages, wire
            return
        self.wire = _smooth(self.wire, wire)
        self.stages = tuple(
            StageTiming(
                wait=_smooth(old.wait, new.wait),
                compute=_smooth(old.compute, new.compute),
                send=_smooth(old.send, new.send),
                queued=_smooth(old.queued, new.queued),
            )
            for old, new in zip(self.stages, stages, strict=True)
        )

    def add_head(self, results: int, head: float, listeners: float) -> None:
        """The head has spent seconds on a number of results, and its listeners on their events."""
        self.head = _smooth(self.head or 1e6 * head / results, 1e6 * head / results)
        self.listeners = _smooth(self.listeners or 1e6 * listeners / results, 1e6 * listeners / results)


def _smooth(old: float, new: float) -> float:
    return old + _SMOOTHING * (new - old)
