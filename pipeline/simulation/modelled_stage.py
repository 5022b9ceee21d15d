"""A modelled stage at work: one step at a time, in the order they come."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from random import Random
from types import MappingProxyType

from pipeline.messages import StageTiming
from pipeline.simulation.stage_model import StageModel
from shards.runtime import SequenceRows

_NOTHING: Mapping[int, float] = MappingProxyType({})


class ModelledStage:
    """Says when a step is done, given when it came.

    Args:
        model: Its step times.
        noise: Where its jitter comes from.
    """

    def __init__(self, model: StageModel, noise: Random) -> None:
        self._model, self._noise = model, noise
        self._free_at = 0.0
        self.busy: list[tuple[float, float]] = []
        """When it computed."""

    def run(
        self, rows: tuple[SequenceRows, ...], arrived: float, ready: float = 0.0, void: Mapping[int, float] = _NOTHING
    ) -> tuple[float, StageTiming]:
        """Compute a step that came at `arrived` and cannot begin before `ready`: when it is done, and its timing.

        `void`: sequences whose rows are not computed once the stage knows, with the time from which it does.
        """
        taken = max(arrived, ready, self._free_at)
        if void:
            rows = tuple(part for part in rows if void.get(part.sequence, inf) > taken)
        time = self._model.time_ms(rows)
        if self._model.jitter:
            # log-normal, so that it is never negative; its mean is 1
            time *= self._noise.lognormvariate(-(self._model.jitter**2) / 2, self._model.jitter)
        timing = StageTiming(
            wait=1e3 * (taken - self._free_at), compute=1e3 * time, send=0.0, queued=1e3 * (taken - arrived)
        )
        self._free_at = taken + time
        if time:
            self.busy.append((taken, self._free_at))
        return self._free_at, timing
