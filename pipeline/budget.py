"""How many rows of prompts a step takes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import ceil, inf

from pipeline.flight import Flight
from pipeline.messages import StageTiming
from pipeline.pacing import Pace
from pipeline.scheduler_config import SchedulerConfig
from pipeline.step_times import StepTimes

_HEADROOM = 0.85
"""The part of the target that is planned with: steps vary, and the slow ones are to stay within it too."""

LEAST_CHUNK = 8
"""Prompt rows that a step always takes, or prompts would never come to an end where answers alone exceed the target.

The weights are read once for all rows of a step, so fewer cost hardly less than this.
"""

_IDLE_TARGETS, _IDLE_STEPS = 4, 10
"""While nobody's answer is being written a step takes so many target times, or as long as so many steps of one answer.

Somebody may come, and waits for the steps on their way; by the second no more than a tenth goes into what each step
costs besides its rows.
"""

_FULL = 0.9
"""A chain counts as full if it is to this part of a step."""


class PromptBudget:
    """Bounds the prompt rows of a step, so that the time between two tokens of any answer stays within the target.

    Between two tokens of an answer each step on its way passes the slowest stage once, or its own step passes the
    whole chain, whichever takes longer. That is while steps are equal: the first long one behind short ones comes
    on top, so steps grow to that size one by one, and what a step waits for at the first stage counts as well.

    While nobody's answer is being written steps are long, but bounded for the sake of those who may come. Where these
    bounds allow, prompts are cut so that their chunks overlap on the stages: n equal chunks take the time of
    n + stages - 1 steps to the first token, so more of them overlap better, and cost more in all.
    """

    def __init__(self, config: SchedulerConfig, times: StepTimes) -> None:
        self._config, self._times = config, times
        self._chunk = 0
        """Of the prompts at work."""
        self._freed_at = 0.0
        """When the first stage was done with the last step whose result has come, in seconds."""

    def learn(self, flight: Flight, timings: Sequence[StageTiming]) -> None:
        """A step has come back."""
        if timings:
            self._freed_at = flight.time + 1e-6 * (timings[0].queued + timings[0].compute)

    def in_flight(self, flights: Collection[Flight]) -> int:
        """Steps on their way at once that keep the chain full while prompts are worked on."""
        step = max((self._times.shape_ms(flight.shape) for flight in flights if flight.shape.prompt), default=0.0)
        if not step:
            return self._config.stages
        return max(self._config.stages, ceil(self._times.depth - 1 + _FULL + self._times.link_ms / step))

    def rows(
        self, answers: int, backlog: int, context: int, pace: Pace | None, flights: Collection[Flight], now: float
    ) -> int:
        """Prompt rows of the next step.

        Args:
            answers: Its answer rows.
            backlog: Rows of all prompts that are to be run.
            context: Tokens before the first of these.
            pace: Of the answers that are being written; None if there are none.
            flights: The steps before it.
            now: When it is sent, in seconds.
        """
        most = min(backlog, self._config.token_budget - answers)
        if most <= 0 or (pace is not None and self._config.target_tbt_ms is None):
            return most
        chunk = self._best_chunk(answers, backlog, context)
        if any(flight.shape.prompt for flight in flights):
            chunk = max(chunk, self._chunk)  # equal ones overlap best: less that is left is no reason for less
        self._chunk = chunk
        step_ms = self._longest_ms(answers, pace, flights, now)
        return min(most, chunk, max(LEAST_CHUNK, self._rows_within(step_ms, answers, context)))

    def bound(self, pace: Pace | None) -> int:
        """Most prompt rows of a step beside a group of answers, once steps are as long as the target allows."""
        answers = pace.rows if pace is not None and self._config.mixed else 0
        steady = self._steady_ms(pace, self._passing(pace, ()))
        rows = max(LEAST_CHUNK, self._rows_within(steady, answers, 0))
        return min(self._config.token_budget - answers, rows)

    def _longest_ms(self, answers: int, pace: Pace | None, flights: Collection[Flight], now: float) -> float:
        """What the next step may take."""
        passing = self._passing(pace, flights)
        steady = self._steady_ms(pace, passing)
        if pace is None:
            return steady
        depth, last, longest = self._times.depth, 0.0, 0.0
        free_at = self._freed_at
        for flight in flights:
            last = self._times.shape_ms(flight.shape)
            free_at = max(free_at, flight.time) + 1e-3 * last
            if flight.shape.prompt:
                longest = max(longest, last)
        # Of the first long steps the k-th passes all stages, behind the k - 1 before it at the first of them.
        step = (longest + steady) / 2 if longest else steady * passing / (passing + depth - 1)
        if answers:  # their last tokens have just come
            left = self._target - self._times.link_ms - max(0.0, 1e3 * (free_at - now))
            # On each further stage it waits for the step before it, where that is longer.
            step = min(step, left / depth if left >= depth * last else left - (depth - 1) * last)
        return min(step, steady)

    def _steady_ms(self, pace: Pace | None, passing: int) -> float:
        """What each of many equal steps may take, `passing` of which are on their way."""
        if pace is None:
            return max(_IDLE_TARGETS * self._target, _IDLE_STEPS * self._times.answers_ms(1))
        step = min(self._target / passing, (self._target - self._times.link_ms) / self._times.depth)
        # Where they don't share steps, one of answers goes between two of prompts.
        return step if self._config.mixed else step - self._times.answers_ms(pace.rows)

    def _rows_within(self, step_ms: float, answers: int, context: int) -> int:
        """As many prompt rows as a step has time for, at most what the token budget has."""
        most, row = self._config.token_budget - answers, self._times.prompt_row_ms(context)
        if row is None:
            return most
        left = max(0.0, step_ms - self._times.answers_ms(max(1, answers)))
        middle = context + min(most, left / row) / 2
        return int(min(most, left / (self._times.prompt_row_ms(middle) or row)))

    def _best_chunk(self, answers: int, backlog: int, context: int) -> int:
        """As many rows as bring the first token soonest, if all prompts are cut into steps of this size."""
        stages, most = self._config.stages, self._config.token_budget - answers
        if stages == 1 or self._times.prompt_row_ms(context) is None:
            return most
        fewest = -(-backlog // most)
        counts = range(fewest, min(backlog, fewest + 4 * stages) + 1)
        best = min(counts, key=lambda n: self._through_ms(n, answers, -(-backlog // n), context))
        return -(-backlog // best)

    def _through_ms(self, chunks: int, answers: int, rows: int, context: int) -> float:
        return (chunks + self._times.depth - 1) * self._times.step_ms(answers, rows, context)

    @property
    def _target(self) -> float:
        return _HEADROOM * (self._config.target_tbt_ms or inf)

    def _passing(self, pace: Pace | None, flights: Collection[Flight]) -> int:
        return max(pace.in_flight if pace else 0, self.in_flight(flights))
