"""What a step is made of: rows of answers, rows ahead of their tokens, rows of prompts."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Line
from itertools import islice
from typing import NamedTuple

from pipeline.budget import PromptBudget
from pipeline.flight import Flight
from pipeline.pacing import Pace, Pacing
from pipeline.room import Room
from pipeline.scheduler_config import SchedulerConfig
from pipeline.sequence import Sequence
from pipeline.speculation.speculation import Speculation
from pipeline.step_times import StepShape


class Rows(NamedTuple):
    """Of a sequence, so many rows of those not sent yet."""

    sequence: Sequence
    rows: int
    is_unknown: bool = False
    """Whether it is the row of a token that is being sampled."""


class Batch(NamedTuple):
    """What a step is to be made of."""

    rows: list[Rows]
    """Perhaps none."""
    shape: StepShape
    follows: bool = False
    """Whether they are guesses behind others."""


class Batching:
    """Makes up steps: who goes first, and how much of each.

    A step takes the rows of one group of answers (see `Pacing`), then prompt rows as far as the budget goes, shortest
    remaining prompt first. One step more than there are groups is in flight where the chain can fill tokens in
    (`runs_ahead`): it waits at the first stage, which need not wait for the head then. While prompts are at work
    it is not sent, for it would be in the way of a prompt that comes, and their long steps leave the head time enough.

    Where answers are guessed at, rows of guesses go along with the row of the last token, and where the chain would be
    idle, others go behind them (see `Speculation`).
    """

    def __init__(
        self,
        config: SchedulerConfig,
        room: Room,
        pacing: Pacing,
        budget: PromptBudget,
        speculation: Speculation | None = None,
    ) -> None:
        self._config, self._room, self._pacing, self._budget = config, room, pacing, budget
        self._speculation = speculation
        self._was_answers = False

    @property
    def pace(self) -> Pace | None:
        """Of the answers that are being written; None if there are none."""
        return self._pacing.pace(decoding) if (decoding := self._decoding) else None

    @property
    def _decoding(self) -> int:
        return len(self._room.running) - len(self._room.prefilling)

    @property
    def prompt_rows(self) -> int:
        """Most prompt rows beside a group of answers, as things stand."""
        return self._budget.bound(self.pace)

    def next(self, flights: Collection[Flight], now: float) -> Batch | None:
        """What the next step is made of; None if enough is in flight."""
        room, pace = self._room, self.pace
        is_ahead = self._config.runs_ahead and not room.prefilling
        full = self._budget.in_flight(flights) if room.prefilling else self._config.stages
        full = max(full, pace.in_flight if pace else 0) + is_ahead
        is_full = sum(not flight.has_guesses for flight in flights) >= full
        if self._speculation is not None:
            self._speculation.look(self._decoding, may_follow=not room.prefilling)
        if self._speculation is not None and pace is not None:
            # Steps of guesses behind others keep none of the rest waiting: they may be void.
            if sum(not flight.follows for flight in flights) >= max(full, self._pacing.filling):
                return self._followers(flights)
        elif is_full:
            return None
        room.make_way(now)
        answers: list[Rows] = []
        prompts: list[Rows] = []
        if self._config.mixed:
            answers = self._answers(flights, is_ahead, now)
            prompts = [] if is_full else self._prompts(flights, sum(part.rows for part in answers), now)
        elif self._was_answers:  # in turns
            prompts = [] if is_full else self._prompts(flights, 0, now)
            answers = [] if prompts else self._answers(flights, is_ahead, now)
        else:
            answers = self._answers(flights, is_ahead, now)
            prompts = [] if answers or is_full else self._prompts(flights, 0, now)
        self._was_answers = bool(answers)
        for sequence, count, _ in prompts:
            room.charge(sequence, count)
        if room.waiting:  # else they are at nobody's cost
            for sequence, count, _ in answers:
                room.charge(sequence, count)
        if not answers and not prompts and (followers := self._followers(flights)) is not None:
            return followers
        if is_full and not answers:
            return None
        return Batch(answers + prompts, _shape(sum(part.rows for part in answers), prompts))

    def _followers(self, flights: Collection[Flight]) -> Batch | None:
        """A step of guesses behind others; None if there are none, or they fill the chain."""
        speculation, pace = self._speculation, self.pace
        if speculation is None or pace is None:
            return None
        if not (speculation.config.asynchronous and speculation.may_follow):
            return None
        under_way = {sent.sequence: None for flight in flights for sent in flight.parts if sent.is_sampled}
        # Answers whose next row is yet to be sent keep their place.
        others = sum(sequence not in under_way for sequence in self._room.running)
        if len(flights) + others >= self._pacing.filling:
            return None
        rows = self._guessed_ahead(speculation, list(under_way), pace)
        return Batch(rows, _shape(sum(part.rows for part in rows), []), follows=True) if rows else None

    def _answers(self, flights: Collection[Flight], is_ahead: bool, now: float) -> list[Rows]:
        """One row of each of the sequences that have been ready longest; then of the oldest group in flight, ahead."""
        pace = self.pace
        groups = sum(flight.has_answers and not flight.has_guesses for flight in flights)
        if pace is None:
            return []
        limit = min(pace.rows, self._config.token_budget)
        batch: list[Rows] = []
        full = pace.in_flight + is_ahead
        if groups < full or self._speculation is not None:
            # Who has waited for guesses, or brought several, is not back with the others: groups fall apart.
            batch = self._ready(pace, limit, now, only_guessed=groups >= full)
            if self._speculation is not None and batch:
                others = [flight.shape.answers for flight in flights if flight.has_answers and not flight.follows]
                batch = self._guessed(self._speculation, batch, pace, others)
        if any(flight.has_guesses for flight in flights) and self._pacing.is_far:
            return batch  # a row that waits at the first stage holds up those behind it, here for long
        if is_ahead and groups < full and len(batch) < limit and (not batch or groups >= pace.in_flight):
            batch += self._ahead(flights, pace, limit - len(batch))
        return batch

    def _ready(self, pace: Pace, limit: int, now: float, only_guessed: bool) -> list[Rows]:
        ready, room = self._room.ready, self._room
        batch: list[Rows] = []
        waits: set[Sequence] = set()
        while len(waits) < len(ready) and not batch:  # they may all have to stop themselves
            candidates = islice((sequence for sequence in ready if sequence not in waits), limit)
            # In order, so that who has to stop for one of them has no row in this step yet.
            for sequence in sorted(candidates, key=lambda sequence: sequence.precedence):
                if sequence not in ready:
                    continue
                is_waiting = self._speculation is not None and not self._speculation.prepare(sequence, pace)
                if is_waiting or (only_guessed and not sequence.guesses):
                    waits.add(sequence)
                elif room.make_room(sequence, now):
                    del ready[sequence]
                    batch.append(Rows(sequence, 1))
        return batch

    def _guessed(self, speculation: Speculation, batch: list[Rows], pace: Pace, others: Line[int]) -> list[Rows]:
        """The batch with rows of guesses, as far as there is room for them; nobody has to stop for one."""
        group = [sequence for sequence, _, _ in batch]
        widths = speculation.widths(group, pace, self._config.token_budget - len(batch), others)
        return [
            Rows(sequence, 1 + self._fitting(sequence, width)) for sequence, width in zip(group, widths, strict=True)
        ]

    def _guessed_ahead(self, speculation: Speculation, under_way: Line[Sequence], pace: Pace) -> list[Rows]:
        """Rows of guesses behind others that are still being verified.

        None follow a row that ran ahead: the tail would go by the token it samples there, the head by the guess of the
        token before, and they would not agree on which rows are void.
        """
        batch: list[Rows] = []
        room = self._config.token_budget
        limit = min(pace.rows, room)
        for sequence in under_way:
            if len(batch) == limit or sequence not in self._room.running or sequence.unsent > 0 or sequence.is_ahead:
                continue
            speculation.extend(sequence, pace)
            width = self._fitting(sequence, speculation.width_ahead(sequence, room))
            if width:
                batch.append(Rows(sequence, width))
                room -= width
        return batch

    def _fitting(self, sequence: Sequence, rows: int) -> int:
        """So many rows of guesses, or as many as the context and the KV cache have room for."""
        end = max(sequence.sent, len(sequence.tokens))
        rows = min(rows, self._config.context_length - end)
        while rows > 0 and not self._room.cache.grow(sequence.id, end + rows):
            rows -= 1
        return max(rows, 0)

    def _ahead(self, flights: Collection[Flight], pace: Pace, limit: int) -> list[Rows]:
        """Rows of tokens that are being sampled, unless guesses are to follow these.

        If such a token ends the answer, its row was run for nothing. Nobody has to stop for one.
        """
        speculation = self._speculation
        batch: list[Rows] = []
        for flight in flights:
            group = [sent.sequence for sent in flight.parts if sent.is_sampled]
            group = [sequence for sequence in group if sequence in self._room.running and sequence.can_run_ahead]
            if speculation is not None:
                group = [sequence for sequence in group if speculation.prepare(sequence, pace)]
                if speculation.holds(group, pace):
                    continue
            for sequence in group[:limit]:
                length = sequence.sent + 1
                if length < self._config.context_length and self._room.cache.grow(sequence.id, length):
                    batch.append(Rows(sequence, 1, is_unknown=True))
            if batch:
                break
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
            batch.append(Rows(sequence, count))
            if count == sequence.unsent:
                del room.prefilling[sequence]
        return batch


def _shape(answers: int, prompts: list[Rows]) -> StepShape:
    if not prompts:
        return StepShape(answers, 0, 0.0)
    rows = sum(prompt.rows for prompt in prompts)
    context = sum(count * (sequence.sent + count / 2) for sequence, count, _ in prompts) / rows
    return StepShape(answers, rows, context)
