"""The scheduler: requests, results and time go in, steps and token events come out. No I/O, no clock, no threads."""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np

from pipeline.batching import Batching
from pipeline.budget import PromptBudget
from pipeline.flight import Flight, Sent
from pipeline.messages import (
    Failed,
    Finished,
    FinishReason,
    Request,
    RequestEvent,
    SequenceRows,
    Step,
    StepResult,
    Token,
    TokenEvent,
    Verify,
)
from pipeline.pacing import Pacing
from pipeline.room import Room
from pipeline.scheduler_config import SchedulerConfig
from pipeline.sequence import Sequence
from pipeline.snapshots import RequestSnapshot, RequestState, SchedulerSnapshot
from pipeline.speculation.drafter import Drafter
from pipeline.speculation.speculation import Speculation
from pipeline.step_times import StepTimes
from shards.errors import CapacityError, OverloadedError, RequestError, StageError

_ENDS = 32
"""Requests that have ended, the latest, tell how soon there is a place for another."""
_RETRY_SECONDS = 1.0, 60.0
"""Bounds of what is told."""


class Scheduler:
    """Continuous batching over a chain of stages with several steps in flight.

    The driver adds and cancels requests, sends what `next_step` gives (calling it until it gives None), and hands
    every result to `complete`. It relies on the chain for this: steps pass each stage in the order of their numbers,
    and a stage applies the operations of a step even if it cannot do the step's rows. Times are seconds, of any clock
    that does not go backwards.
    """

    def __init__(self, config: SchedulerConfig, drafter: Drafter | None = None) -> None:
        self.config, self.drafter = config, drafter
        self._times = StepTimes(config.step_times, config.link_ms, config.stages, config.detour_ms)
        self._room = Room(config, self._times)
        self._budget = PromptBudget(config, self._times)
        self._speculation = None if drafter is None else Speculation(config.speculation, drafter, self._times)
        pacing = Pacing(config.stages, self._times)
        self._batching = Batching(config, self._room, pacing, self._budget, self._speculation)
        self._cancelled: dict[int, int] = {}
        """See `take_cancelled`."""
        self._requests: dict[str, Sequence] = {}
        """Everything that has not ended."""
        self._in_flight: dict[int, Flight] = {}
        self._ends: deque[float] = deque(maxlen=_ENDS)
        """When requests have ended."""
        self._steps = self._rows = self._completion_tokens = 0

    # What the driver calls

    def add(self, request: Request, now: float) -> None:
        """Take a request in.

        Raises:
            RequestError: the prompt is empty or leaves no room in the context, `max_tokens` is below 1, or a request
                of this id has not ended yet.
            CapacityError: the prompt alone is larger than the KV cache.
            OverloadedError: as many requests wait as may.
        """
        length = len(request.prompt)
        if not length:
            raise RequestError("the prompt has no tokens", where="prompt")
        if length + 1 > self.config.context_length:
            raise RequestError(
                f"the prompt has {length} tokens and the model's context is {self.config.context_length}, "
                "which must also hold the answer",
                where="prompt",
                hint="Shorten the prompt.",
            )
        if request.max_tokens < 1:
            raise RequestError(f"{request.max_tokens} is less than 1", where="max_tokens")
        if request.id in self._requests:
            raise RequestError(f"a request of the id {request.id!r} has not ended yet", where="id")
        if not self._fits(length):
            total = self._room.cache.capacity * self.config.block
            raise CapacityError(
                f"the prompt has {length} tokens and the KV cache holds {total}",
                where="prompt",
                hint="Give the stages a larger kv_tokens, or shorten the prompt.",
            )
        if self._room.waiting >= self.config.max_waiting:
            raise self._overloaded(now)
        sequence = Sequence(request, arrived=now)
        self._requests[request.id] = sequence
        self._room.add(sequence, now)

    def cancel(self, request_id: str, now: float) -> list[RequestEvent]:
        """End a request, wherever it is; the next step frees it on every stage. An unknown id gives no event."""
        sequence = self._requests.get(request_id)
        return [] if sequence is None else [self._finish(sequence, "cancelled", now)]

    def next_step(self, now: float) -> Step | None:
        """The next step to send, or None: there is nothing to do now, or enough is in flight."""
        batch = self._batching.next(self._in_flight.values(), now)
        if batch is None:
            return None
        operations = self._room.cache.take_operations()
        if not batch.rows and not operations:
            return None
        rows: list[SequenceRows] = []
        tokens: list[int] = []
        sent: list[Sent] = []
        verifies: list[Verify] = []
        is_sampled = False
        for sequence, count, is_unknown in batch.rows:
            past, known = sequence.sent, len(sequence.tokens)
            read, has_guesses = sequence.send(count, is_unknown)
            sample = max(0, past + count - max(past, known - 1))
            if has_guesses:
                assert self._speculation is not None
                self._speculation.sent += past + count - max(past, known)
                verifies.append(Verify(sequence.id, sequence.branch, tuple(read[-sample:])))
            tokens += read
            is_sampled = is_sampled or sample > 0
            rows.append(SequenceRows(sequence.id, past, count, sample))
            branch = sequence.branch if has_guesses else -1
            sent.append(Sent(sequence, sequence.id, past + count, sample > 0, branch))
        step = Step(
            self._steps, operations, tuple(rows), np.array(tokens, np.int32), self.config.runs_ahead, tuple(verifies)
        )
        self._in_flight[step.number] = Flight(sent, is_sampled, batch.shape, now, bool(verifies), batch.follows)
        self._steps += 1
        self._rows += len(tokens)
        return step

    def complete(self, result: StepResult, now: float) -> list[RequestEvent]:
        """Take the result of a step; one that is not in flight gives no event."""
        flight = self._in_flight.pop(result.number, None)
        if flight is None:
            return []
        tokens: dict[int, list[Token]] = defaultdict(list)
        for token in result.tokens:
            tokens[token.sequence].append(token)
        if result.error is None and flight.parts:
            is_whole = all(sent.id in tokens for sent in flight.parts if sent.is_sampled)
            if is_whole:  # else rows that were void have been left out
                self._times.observe(flight.shape, result.timings, 1e3 * (now - flight.time))
            self._budget.learn(flight, result.timings)
        if self._speculation is not None and result.tokens:
            self._speculation.note(now, len(result.tokens))
        events: list[RequestEvent] = []
        for sent in flight.parts:
            sequence = sent.sequence
            sequence.awaiting -= sent.is_sampled
            if sequence.is_finished:
                continue
            answer = tokens.get(sent.id, ())
            is_current = sequence.id == sent.id  # one that had to stop goes on anew, whatever became of these rows
            if result.error is None:
                if answer and answer[0].position == len(sequence.tokens):
                    for token in answer:
                        if not sequence.is_finished:
                            events += self._accept(sent, token, now)
                    continue
                if not sent.is_sampled:
                    self._done(sent, sent.end)
            is_void = sent.branch >= 0 and sent.branch != sequence.branch
            if is_current and (result.error is not None or sent.is_sampled) and not is_void:
                what = result.error or f"the tail did not give the token at position {len(sequence.tokens)}"
                error = StageError(what, where=f"request {sequence.request.id}", hint="Send the request again.")
                events.append(self._fail(sequence, error, now))
        return events

    def take_cancelled(self) -> dict[int, int]:
        """Guesses that were wrong while rows that follow them are on their way: of each sequence the last void branch.

        They are told once. Stages that know of them need not compute such rows.
        """
        cancelled, self._cancelled = self._cancelled, {}
        return cancelled

    def fail_all(self, error: Exception, now: float) -> list[RequestEvent]:
        """End every request in `error`: the chain is gone. The next step is the first of a chain that holds nothing."""
        events: list[RequestEvent] = [self._fail(sequence, error, now) for sequence in list(self._requests.values())]
        self._in_flight.clear()
        self._room.clear_cache()
        return events

    def snapshot(self) -> SchedulerSnapshot:
        """What it is doing."""
        room, cache, block = self._room, self._room.cache, self.config.block
        new = [sequence for sequence in self._requests.values() if sequence.turn < 0]
        return SchedulerSnapshot(
            running=len(room.running),
            waiting=room.waiting,
            waiting_batch=sum(sequence.request.service == "batch" for sequence in new),
            preempted=len(room.preempted) + len(room.paused),
            paused=len(room.paused),
            in_flight=len(self._in_flight),
            kv_total=cache.capacity * block,
            kv_used=cache.pinned * block,
            kv_kept=cache.kept * block,
            steps=self._steps,
            rows=self._rows,
            prompt_tokens=room.prompt_tokens,
            cached_tokens=room.cached_tokens,
            completion_tokens=self._completion_tokens,
            sent_guesses=self._speculation.sent if self._speculation else 0,
            right_guesses=self._speculation.right if self._speculation else 0,
            preemptions=room.preemptions,
            lookups=room.lookups,
            hits=room.hits,
            evicted_tokens=cache.evicted * block,
            prompt_rows=self._batching.prompt_rows,
            step_times=self._times.table,
            prompt_row_ms=self._times.prompt_row_ms(0.0),
            link_ms=self._times.link_ms,
        )

    def requests(self, now: float) -> tuple[RequestSnapshot, ...]:
        """Everything that has not ended, in the order it came."""
        return tuple(sequence.snapshot(self._state(sequence), now) for sequence in self._requests.values())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to send or to wait for."""
        return not (self._requests or self._in_flight or self._room.cache.operations)

    # How a sequence moves on

    def _accept(self, sent: Sent, token: Token, now: float) -> list[RequestEvent]:
        """Take a sampled token: the answer goes on, or ends with it."""
        sequence = sent.sequence
        request = sequence.request
        before = len(sequence.tokens)
        if self._speculation is None:
            sequence.tokens.append(token.token)
        elif self._speculation.confirm(sequence, token.token):
            self._cancel(sequence, sequence.branch - 1)
        self._done(sent, min(sent.end, before))  # the row of this token comes later, or was another's
        self._completion_tokens += 1
        if sequence.first_token is None:
            sequence.first_token = now
        if token.token in request.stop_tokens:
            return [self._finish(sequence, "stop", now)]
        events: list[RequestEvent] = [TokenEvent(request.id, token)]
        length = len(sequence.tokens)
        is_full = length == self.config.context_length or not self._fits(length)
        if is_full or sequence.completion == request.max_tokens:
            events.append(self._finish(sequence, "length", now))
        elif sequence.id >= 0 and sequence.unsent > 0:  # else it has run ahead
            self._room.ready[sequence] = None
        return events

    def _done(self, sent: Sent, length: int) -> None:
        """The first `length` tokens of a sequence are in the cache of every stage."""
        self._room.cache.done(sent.id, sent.sequence.tokens, length)
        if sent.sequence.id == sent.id:
            sent.sequence.done = length

    def _cancel(self, sequence: Sequence, branch: int) -> None:
        """Rows of guesses on their way are void."""
        if sequence.awaiting and sequence.id >= 0:
            self._cancelled[sequence.id] = branch

    def _finish(self, sequence: Sequence, reason: FinishReason, now: float) -> Finished:
        self._end(sequence, now, keep=reason != "cancelled")
        return Finished(sequence.request.id, reason, sequence.usage)

    def _fail(self, sequence: Sequence, error: Exception, now: float) -> Failed:
        self._end(sequence, now, keep=False)
        return Failed(sequence.request.id, error, sequence.usage)

    def _end(self, sequence: Sequence, now: float, keep: bool) -> None:
        sequence.is_finished = True
        if self._speculation is not None:
            self._speculation.end(sequence)
            self._cancel(sequence, sequence.branch)
        del self._requests[sequence.request.id]
        self._room.end(sequence, keep)
        self._ends.append(now)

    def _state(self, sequence: Sequence) -> RequestState:
        if sequence in self._room.running:
            return "prefill" if sequence in self._room.prefilling or not sequence.completion else "decode"
        return "waiting" if sequence.turn < 0 else "preempted"

    # What does not fit

    def _fits(self, tokens: int) -> bool:
        return self._room.cache.blocks_for(tokens) <= self._room.cache.capacity

    def _overloaded(self, now: float) -> OverloadedError:
        """As soon as a request ends, another begins that has waited."""
        least, most = _RETRY_SECONDS
        seconds = (now - self._ends[0]) / len(self._ends) if self._ends else least
        seconds = min(max(seconds, least), most)
        return OverloadedError(
            f"{self._room.waiting} requests wait and at most {self.config.max_waiting} may",
            hint=f"Try again in {seconds:.0f} s.",
            retry_seconds=seconds,
        )
