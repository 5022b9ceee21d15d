"""A scheduler that notes what its steps take, and models of stages and links made of such notes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pipeline.messages import NOT_YET, RequestEvent, StageTiming, Step, StepResult
from pipeline.monotone import monotone
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig
from pipeline.simulation.stage_model import StageModel

_SEVERAL = 8
"""Steps of one number of rows that tell how much their times scatter."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step that was done."""

    rows: int
    is_ahead: bool
    """Whether it could wait at the first stage for a token."""
    round_ms: float
    """From when the scheduler gave it until it got the result."""
    timings: tuple[StageTiming, ...]


class RecordingScheduler(Scheduler):
    """Keeps a record of every step with rows that no stage refused."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._given: dict[int, tuple[Step, float]] = {}
        """Each step in flight, and when it was given."""
        self._recorded: list[RecordedStep] = []

    def next_step(self, now: float) -> Step | None:
        """As `Scheduler.next_step`."""
        step = super().next_step(now)
        if step is not None:
            self._given[step.number] = step, now
        return step

    def complete(self, result: StepResult, now: float) -> list[RequestEvent]:
        """As `Scheduler.complete`."""
        step, sent = self._given.pop(result.number)
        if step.rows and result.error is None:
            is_ahead = NOT_YET in step.tokens
            self._recorded.append(RecordedStep(len(step.tokens), is_ahead, 1e3 * (now - sent), result.timings))
        return super().complete(result, now)

    def take(self) -> list[RecordedStep]:
        """What was recorded since the last time; from another thread than the head's."""
        taken, self._recorded = self._recorded, []
        return taken


def stage_models(steps: Sequence[RecordedStep]) -> list[StageModel]:
    """The stages by what steps have taken on them: means, because they add up, and how much they scatter.

    `call_ms` is what a stage spends on a step besides computing: handing its result on, and taking the next.
    """
    return [_stage_model(steps, i) for i in range(len(steps[0].timings))]


def leg_ms(steps: Sequence[RecordedStep], models: Sequence[StageModel]) -> float:
    """What a step spends on each of its legs: in sockets, and until head or stage look at them."""
    ways = (step.round_ms - 1e-3 * sum(timing.queued + timing.compute for timing in step.timings) for step in steps)
    # the tail hands its result to a thread, so that is part of the last leg
    handed_on = sum(model.call_ms for model in models[:-1])
    return max(0.0, fmean(ways) - handed_on) / (len(models) + 1)


def _stage_model(steps: Sequence[RecordedStep], index: int) -> StageModel:
    times: dict[int, list[float]] = defaultdict(list)
    for step in steps:
        times[step.rows].append(1e-3 * step.timings[index].compute)
    means = {rows: fmean(times[rows]) for rows in sorted(times)}
    table = [*zip(means, monotone(means.values()), strict=True)]
    most, longest = table[-1]
    table.append((2 * most, 2 * longest))  # beyond what was seen in proportion: the last slope may be noise
    scatter = [
        (time / means[rows] - 1) ** 2 for rows, taken in times.items() if len(taken) >= _SEVERAL for time in taken
    ]
    # a stage that was busy when a step came takes it as soon as it can, if it need not wait for a token
    taking = [
        step.timings[index].wait
        for step in steps
        if step.timings[index].queued > step.timings[index].wait and not (step.is_ahead and index == 0)
    ]
    call = fmean(step.timings[index].send for step in steps) + (fmean(taking) if taking else 0.0)
    jitter = min(1.0, fmean(scatter) ** 0.5) if scatter else 0.0
    return StageModel(step_ms=tuple(table), call_ms=1e-3 * call, jitter=jitter)
