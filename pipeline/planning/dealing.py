"""Dealing a model's layers to the stages of a chain, in order, so that many steps go round fastest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import inf

from pipeline.planning.prediction import StepTimes


class Deal:
    """The layers of each stage, at least one, with the least period of `in_flight` steps; exact.

    All layers cost the same on a node. So once no stage may take longer than some limit, each has a cap, and the
    quickest way through fills the fastest stages up to theirs. The limit need only be tried where a cap grows: from
    what no dealing can beat, up to where `in_flight` times the limit is no better than what is found.

    Args:
        step: Times of a step of the size in question.
        most: Layers that fit in the memory of each stage, at least one.
        layers: Of the model; at least one for each stage, and no more than fit in all.
        in_flight: Steps on their way at once.
    """

    def __init__(self, step: StepTimes, most: Sequence[int], layers: int, in_flight: int) -> None:
        self._step, self._most, self._layers, self._in_flight = step, most, layers, in_flight
        self._fastest_first = sorted(range(len(most)), key=step.layer.__getitem__)
        self._quickest = self._fill(most)
        self._limit = max(self._least_slowest(), step.traversal(self._quickest) / in_flight)
        self.least_period = in_flight * self._limit
        """What no dealing beats."""

    def best(self, below: float = inf) -> tuple[int, ...] | None:
        """The best dealing; None if its period is not below `below`."""
        step, most, in_flight, limit = self._step, self._most, self._in_flight, self._limit
        best, period = self._quickest, step.period(self._quickest, in_flight)
        caps = [self._cap(stage, limit) for stage in range(len(most))]
        growing = [(step.stage(stage, cap + 1), stage) for stage, cap in enumerate(caps) if cap < most[stage]]
        heapify(growing)
        room = sum(caps)
        while in_flight * limit < min(period, below):
            if room >= self._layers:
                dealt = self._fill(caps)
                if (found := step.period(dealt, in_flight)) < period:
                    best, period = dealt, found
            if not growing:
                break
            time, stage = heappop(growing)
            limit = max(limit, time)
            caps[stage] += 1
            room += 1
            if caps[stage] < most[stage]:
                heappush(growing, (step.stage(stage, caps[stage] + 1), stage))
        return best if period < below else None

    def _fill(self, caps: Sequence[int]) -> tuple[int, ...]:
        """The quickest dealing with these caps."""
        dealt, left = [1] * len(caps), self._layers - len(caps)
        for stage in self._fastest_first:
            more = min(caps[stage] - 1, left)
            dealt[stage] += more
            left -= more
        return tuple(dealt)

    def _cap(self, stage: int, limit: float) -> int:
        """Layers that a stage can have within the limit, at least one."""
        most, layer = self._most[stage], self._step.layer[stage]
        room = limit - self._step.bases[stage]
        return most if room >= most * layer else max(1, int(room / layer))

    def _least_slowest(self) -> float:
        """What the slowest stage takes at least: layers may be cut in pieces here, which only helps.

        All stages would take equally long, but for those that their memory stops earlier.
        """
        step = self._step
        least = max(step.transfer, *map(sum, zip(step.bases, step.layer, strict=True)))
        stages = sorted(
            (base + most * layer, most, base, layer)
            for base, layer, most in zip(step.bases, step.layer, self._most, strict=True)
            if layer > 0
        )
        left = self._layers - sum(most for most, layer in zip(self._most, step.layer, strict=True) if layer <= 0)
        # of each stage and those that are full later
        speeds = list(accumulate(1 / layer for *_, layer in reversed(stages)))
        bases = list(accumulate(base / layer for *_, base, layer in reversed(stages)))
        for (full, most, *_), speed, base in zip(stages, reversed(speeds), reversed(bases), strict=True):
            level = (left + base) / speed
            if full >= level:
                return max(least, level)
            left -= most
        return least
