"""What a step is made of: rows of answers, rows ahead of their tokens, rows of prompts."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from pipeline.budget import PromptBudget
from pipeline.flight import Flight
from pipeline.pacing import Pace, Pacing
from pipeline.room import Room
from pipeline.scheduler_config import SchedulerConfig
from pipeline.sequence import Sequence
from pipeline.step_times import StepShape

Rows = tuple[Sequence, int]
"""Of a sequence, so many rows of those not sent yet."""


class Batching:
    """Makes up steps: who goes first, and how much of each.

    A step takes the rows of one group of answers (see `Pacing`), then prompt rows as far as the budget goes, shortest
    remaining prompt first. One step more than there are groups is in flight where the chain can fill tokens in
    (`runs_ahead`): it waits at the first stage, which need not wait for the head then. While prompts are at work
    it is not sent, for it would be in the way of a prompt that comes, and their long steps leave the head time enough.
    """

    def __init__(self, config: SchedulerConfig, room: Room, pacing: Pacing, budget: PromptBudget) -> None:
        self._config, self._room, self._pacing, self._budget = config, room, pacing, budget
        self._was_answers = False

    @property
    def pace(self) -> Pace | None:
        """Of the answers that are being written; None if there are none."""
        decoding = len(self._room.running) - len(self._room.prefilling)
        return self._pacing.pace(decoding) if decoding else None

    @property
    def prompt_rows(self) -> int:
        """Most prompt rows beside a group of answers, as things stand."""
        return self._budget.bound(self.pace)

    def next(self, flights: Collection[Flight], now: float) -> tuple[list[Rows], StepShape] | None:
        """The rows of the next step (perhaps none) and its shape; None if enough is in flight."""
        room, pace = self._room, self.pace
        is_ahead = self._config.runs_ahead and not room.prefilling
        full = self._budget.in_flight(flights) if room.prefilling else self._config.stages
        full = max(full, pace.in_flight if pace else 0)
        if len(flights) >= full + is_ahead:
            return None
        room.make_way(now)
        answers: list[Rows] = []
        prompts: list[Rows] = []
        if self._config.mixed:
            answers = self._answers(flights, is_ahead, now)
            prompts = self._prompts(flights, len(answers), now)
        elif self._was_answers:  # in turns
            prompts = self._prompts(flights, 0, now)
            answers = [] if prompts else self._answers(flights, is_ahead, now)
        else:
            answers = self._answers(flights, is_ahead, now)
            prompts = [] if answers else self._prompts(flights, 0, now)
        self._was_answers = bool(answers)
        for sequence, count in prompts:
            room.charge(sequence, count)
        if room.waiting:  # else they are at nobody's cost
            for sequence, count in answers:
                room.charge(sequence, count)
        return answers + prompts, _shape(len(answers), prompts)

    def _answers(self, flights: Collection[Flight], is_ahead: bool, now: float) -> list[Rows]:
        """One row of each of the sequences that have been ready longest; then of the oldest group in flight, ahead."""
        pace, ready = self.pace, self._room.ready
        groups = sum(flight.has_answers for flight in flights)
        if pace is None or groups >= pace.in_flight + is_ahead:
            return []
        limit = min(pace.rows, self._config.token_budget)
        batch: list[Rows] = []
        while ready and not batch:  # they may all have to stop themselves
            # In order, so that who has to stop for one of them has no row in this step yet.
            for sequence in sorted(islice(ready, limit), key=lambda sequence: sequence.precedence):
                if sequence in ready and self._room.make_room(sequence, now):
                    del ready[sequence]
                    batch.append((sequence, 1))
        if is_ahead and (not batch or groups >= pace.in_flight):
            batch += self._ahead(flights, limit - len(batch))
        return batch

    def _ahead(self, flights: Collection[Flight], limit: int) -> list[Rows]:
        """Rows of tokens that are being sampled.

        If such a token ends the answer, its row was run for nothing. Nobody has to stop for one.
        """
        batch: list[Rows] = []
        for flight in flights:
            for sequence in (sent.sequence for sent in flight.parts if sent.is_sampled):
                length = sequence.sent + 1
                if len(batch) == limit:
                    return batch
                wanted = sequence in self._room.running and sequence.can_run_ahead
                if wanted and length < self._config.context_length and self._room.cache.grow(sequence.id, length):
                    batch.append((sequence, 1))
            if batch:
                return batch
        return batch

    def _prompts(self, flights: Collection[Flight], answers: int, now: float) -> list[Rows]:
        """Chunks of prompts in their order, as far as the budget goes; those let in take their place in it."""
        room = self._room
        if not (room.prefilling or room.waiting or room.preempted or room.paused):
            return []
        line = sorted(room.prefilling, key=room.rank)
        context = line[0].sent if line else 0
        budget = self._budget.rows(answers, room.backlog, context, self.pace, flights, now)
        batch: list[Rows] = []
        while budget > 0:
            sequence = room.admit(now, before=line[0] if line else None)
            if sequence is None:
                if not line:
                    break
                sequence = line.pop(0)
            count = min(budget, sequence.unsent)
            budget -= count
            batch.append((sequence, count))
            if count == sequence.unsent:
                del room.prefilling[sequence]
        return batch


def _shape(answers: int, prompts: list[Rows]) -> StepShape:
    if not prompts:
        return StepShape(answers, 0, 0.0)
    rows = sum(count for _, count in prompts)
    return StepShape(answers, rows, sum(count * (sequence.sent + count / 2) for sequence, count in prompts) / rows)
