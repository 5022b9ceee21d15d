"""The scheduler: requests, results and time go in, steps and token events come out. No I/O, no clock, no threads."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from pipeline.admission import AdmissionQueue
from pipeline.messages import (
    NOT_YET,
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
)
from pipeline.pacing import Pace, Pacing
from pipeline.prefix_cache import PrefixCache
from pipeline.scheduler_config import SchedulerConfig
from pipeline.sequence import Sequence
from pipeline.snapshots import RequestSnapshot, RequestState, SchedulerSnapshot
from shards.errors import CapacityError, RequestError, StageError


@dataclass(frozen=True, slots=True)
class _Sent:
    """Rows of a sequence in a step in flight."""

    sequence: Sequence
    id: int
    """Its name then: a replay has another."""
    end: int
    """Tokens of it that are cached when the step is done."""
    is_sampled: bool
    is_echoed: bool


class Scheduler:
    """Continuous batching over a chain of stages with several steps in flight.

    The driver adds and cancels requests, sends what `next_step` gives (calling it until it gives None), and hands
    every result to `complete`. It relies on the chain for this: steps pass each stage in the order of their numbers,
    and a stage applies the operations of a step even if it cannot do the step's rows.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self._pacing = Pacing(config.stages, config.step_times, config.link_ms)
        self._requests: dict[str, Sequence] = {}
        """Everything that has not ended. Each is in exactly one of: waiting, preempted, running."""
        self._waiting = AdmissionQueue(config.ageing)
        self._preempted: list[Sequence] = []
        """Oldest first; they go before all that wait."""
        self._running: dict[Sequence, None] = {}
        self._prefilling: dict[Sequence, None] = {}
        """Those of the running that have rows to send before the next token can be sampled, oldest first."""
        self._ready: dict[Sequence, None] = {}
        """Those of the running that have a decode row to send, longest ready first."""
        self._in_flight: dict[int, list[_Sent]] = {}
        self._cache = self._empty_cache()
        self._next_id = 0
        self._turns = 0
        self._steps = self._rows = self._prompt_tokens = self._cached_tokens = 0
        self._completion_tokens = self._preemptions = 0

    # What the driver calls

    def add(self, request: Request, now: float) -> None:
        """Take a request in.

        Raises:
            RequestError: the prompt is empty or leaves no room in the context, `max_tokens` is below 1, or a request
                of this id has not ended yet.
            CapacityError: the prompt alone is larger than the KV cache.
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
            raise self._too_large(f"the prompt has {length} tokens", "prompt")
        sequence = Sequence(request, arrived=now)
        self._requests[request.id] = sequence
        self._waiting.add(sequence, now)

    def cancel(self, request_id: str, now: float) -> list[RequestEvent]:
        """End a request, wherever it is; the next step frees it on every stage. An unknown id gives no event."""
        sequence = self._requests.get(request_id)
        return [] if sequence is None else [self._finish(sequence, "cancelled")]

    def next_step(self, now: float) -> Step | None:
        """The next step to send, or None: there is nothing to do now, or enough is in flight."""
        pace = self._pacing.pace(len(self._running) - len(self._prefilling))
        if len(self._in_flight) >= max(pace.in_flight, self.config.stages) + self._is_followed:
            return None
        batch = self._decode_rows(pace)
        batch += self._prefill_rows(self.config.token_budget - len(batch), now)
        operations = self._cache.take_operations()
        if not batch and not operations:
            return None
        rows: list[SequenceRows] = []
        tokens: list[int] = []
        sent: list[_Sent] = []
        for sequence, count in batch:
            known = sequence.tokens[sequence.sent : sequence.sent + count]
            tokens += known or [NOT_YET]
            rows.append(SequenceRows(sequence.id, sequence.sent, count, sample=int(count >= sequence.unsent)))
            sequence.sent += count
            sequence.awaiting += rows[-1].sample
            sent.append(_Sent(sequence, sequence.id, sequence.sent, bool(rows[-1].sample), self._is_followed))
        step = Step(self._steps, operations, tuple(rows), np.array(tokens, np.int32), self._is_followed)
        self._in_flight[step.number] = sent
        self._steps += 1
        self._rows += len(tokens)
        return step

    def complete(self, result: StepResult, now: float) -> list[RequestEvent]:
        """Take the result of a step; one that is not in flight gives no event."""
        tokens = {token.sequence: token for token in result.tokens}
        events: list[RequestEvent] = []
        for sent in self._in_flight.pop(result.number, ()):
            sequence = sent.sequence
            sequence.awaiting -= sent.is_sampled
            if sequence.is_finished:
                continue
            token = tokens.get(sent.id)
            is_current = sequence.id == sent.id  # a preempted one is computed again, whatever became of these rows
            if is_current and result.error is None:
                sequence.done = sent.end
                self._cache.done(sent.id, sequence.tokens, sent.end)
            if result.error is None and token and token.position == len(sequence.tokens):
                if sequence.first_token is None:
                    sequence.first_token = now
                events += self._accept(sequence, token)
            elif is_current and (result.error is not None or sent.is_sampled):
                what = result.error or f"the tail did not give the token at position {len(sequence.tokens)}"
                error = StageError(what, where=f"request {sequence.request.id}", hint="Send the request again.")
                events.append(self._fail(sequence, error))
        return events

    def fail_all(self, error: Exception, now: float) -> list[RequestEvent]:
        """End every request in `error`: the chain is gone. The next step is the first of a chain that holds nothing."""
        events: list[RequestEvent] = [self._fail(sequence, error) for sequence in list(self._requests.values())]
        self._in_flight.clear()
        self._cache = self._empty_cache()
        return events

    def snapshot(self) -> SchedulerSnapshot:
        """What it is doing."""
        block = self.config.block
        return SchedulerSnapshot(
            running=len(self._running),
            waiting=len(self._waiting),
            preempted=len(self._preempted),
            in_flight=len(self._in_flight),
            kv_total=self._cache.capacity * block,
            kv_used=self._cache.pinned * block,
            kv_kept=self._cache.kept * block,
            steps=self._steps,
            rows=self._rows,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            completion_tokens=self._completion_tokens,
            preemptions=self._preemptions,
        )

    def requests(self, now: float) -> tuple[RequestSnapshot, ...]:
        """Everything that has not ended, in the order it came."""
        return tuple(sequence.snapshot(self._state(sequence), now) for sequence in self._requests.values())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to send or to wait for."""
        return not (self._requests or self._in_flight or self._cache.operations)

    # What a step is made of

    def _decode_rows(self, pace: Pace) -> list[tuple[Sequence, int]]:
        """One row of each of the sequences that have been ready longest; then of the oldest group in flight, ahead."""
        groups = sum(any(sent.is_sampled for sent in step) for step in self._in_flight.values())
        if groups >= pace.in_flight + self._is_followed:
            return []
        limit = min(pace.rows, self.config.token_budget)
        batch: list[tuple[Sequence, int]] = []
        # Oldest first: who is preempted for one of them is younger, so it has no row in this step yet.
        for sequence in sorted(islice(self._ready, limit), key=lambda sequence: sequence.turn):
            if sequence in self._ready and self._make_room(sequence):
                del self._ready[sequence]
                batch.append((sequence, 1))
        if self._is_followed and (not batch or groups >= pace.in_flight):
            batch += self._rows_ahead(limit - len(batch))
        return batch

    @property
    def _is_followed(self) -> bool:
        """Whether steps are followed at once by the next of the same sequences.

        Where there are groups enough to keep all stages busy, the head's answer is in time, and an echo only costs.
        """
        return self.config.runs_ahead and (self.config.stages == 1 or len(self._running) < self.config.stages)

    def _rows_ahead(self, limit: int) -> list[tuple[Sequence, int]]:
        """Rows of tokens that are being sampled. They wait at the first stage, so that it need not wait for the head.

        If such a token ends the answer, its row was run for nothing. Nobody is preempted for one.
        """
        batch: list[tuple[Sequence, int]] = []
        for step in self._in_flight.values():
            for sequence in (sent.sequence for sent in step if sent.is_sampled and sent.is_echoed):
                length = sequence.sent + 1
                if len(batch) == limit:
                    return batch
                wanted = sequence in self._running and sequence.can_run_ahead and length < self.config.context_length
                if wanted and self._fits(length) and self._cache.grow(sequence.id, length):
                    batch.append((sequence, 1))
            if batch:
                return batch
        return batch

    def _prefill_rows(self, budget: int, now: float) -> list[tuple[Sequence, int]]:
        """Chunks of prompts, oldest first, as far as the budget goes; then of requests let in for what is left."""
        batch: list[tuple[Sequence, int]] = []
        sequences = chain(tuple(self._prefilling), self._admissions(now))
        while budget and (sequence := next(sequences, None)):
            count = min(budget, sequence.unsent)
            if len(self._running) == 1:
                count = self._pacing.chunk(sequence.unsent, most=count)
            budget -= count
            batch.append((sequence, count))
            if count == sequence.unsent:
                del self._prefilling[sequence]
        return batch

    def _admissions(self, now: float) -> Iterator[Sequence]:
        while sequence := self._admit(now):
            yield sequence

    def _admit(self, now: float) -> Sequence | None:
        """Let in the request whose turn it is, or None if nobody waits or it does not fit yet.

        A block for each running sequence is left free, or they would soon preempt one another.
        """
        sequence = self._preempted[0] if self._preempted else self._waiting.peek(now)
        if sequence is None or sequence.awaiting or len(self._running) >= self._slots:
            return None
        cached = self._cache.open(self._next_id, sequence.tokens, spare=len(self._running))
        if cached is None:
            return None
        if self._preempted:
            del self._preempted[0]
        else:
            self._waiting.pop(sequence, now)
            sequence.turn, sequence.cached = self._turns, cached
            self._turns += 1
            self._prompt_tokens += len(sequence.request.prompt)
            self._cached_tokens += cached
        sequence.id, sequence.sent, sequence.done = self._next_id, cached, cached
        self._next_id += 1
        self._cache.operations.append(sequence.opening)
        self._running[sequence] = self._prefilling[sequence] = None
        return sequence

    def _make_room(self, sequence: Sequence) -> bool:
        """Find a block for a decode row if it needs one; False if the sequence itself had to go."""
        while not self._cache.grow(sequence.id, len(sequence.tokens)):
            youngest = max(self._running, key=lambda running: running.turn)
            self._preempt(youngest)
            if youngest is sequence:
                return False
        return True

    # How a sequence moves on

    def _preempt(self, sequence: Sequence) -> None:
        """Give its blocks to an older one; it will be computed again, with a token still in flight if there is one."""
        self._leave(sequence)
        self._cache.free(sequence.id)
        sequence.id, sequence.sent, sequence.done = -1, 0, 0
        insort(self._preempted, sequence, key=lambda preempted: preempted.turn)
        self._preemptions += 1

    def _accept(self, sequence: Sequence, token: Token) -> list[RequestEvent]:
        """Take a sampled token: the answer goes on, or ends with it."""
        request = sequence.request
        sequence.tokens.append(token.token)
        self._completion_tokens += 1
        if token.token in request.stop_tokens:
            return [self._finish(sequence, "stop")]
        events: list[RequestEvent] = [TokenEvent(request.id, token)]
        length = len(sequence.tokens)
        if sequence.completion == request.max_tokens or length == self.config.context_length:
            events.append(self._finish(sequence, "length"))
        elif not self._fits(length):
            # Not "length": the client asked for more and the model could have given it.
            error = self._too_large(f"prompt and answer have grown to {length} tokens", "max_tokens")
            events.append(self._fail(sequence, error))
        elif sequence.id >= 0 and sequence.unsent:  # else it has run ahead
            self._ready[sequence] = None
        return events

    def _finish(self, sequence: Sequence, reason: FinishReason) -> Finished:
        self._end(sequence, keep=reason != "cancelled")
        return Finished(sequence.request.id, reason, sequence.usage)

    def _fail(self, sequence: Sequence, error: Exception) -> Failed:
        self._end(sequence, keep=False)
        return Failed(sequence.request.id, error, sequence.usage)

    def _end(self, sequence: Sequence, keep: bool) -> None:
        """Take it out of wherever it is; keep its cache for others to fork, or free it everywhere."""
        sequence.is_finished = True
        del self._requests[sequence.request.id]
        if sequence in self._running:
            self._leave(sequence)
            (self._cache.finish if keep else self._cache.free)(sequence.id)
        elif sequence in self._preempted:
            self._preempted.remove(sequence)
        else:
            self._waiting.remove(sequence)

    def _leave(self, sequence: Sequence) -> None:
        del self._running[sequence]
        self._prefilling.pop(sequence, None)
        self._ready.pop(sequence, None)

    def _state(self, sequence: Sequence) -> RequestState:
        if sequence in self._running:
            return "prefill" if sequence in self._prefilling or not sequence.completion else "decode"
        return "waiting" if sequence.turn < 0 else "preempted"

    # Room

    @property
    def _slots(self) -> int:
        return min(self.config.max_sequences, self.config.token_budget)

    def _fits(self, tokens: int) -> bool:
        return self._cache.blocks_for(tokens) <= self._cache.capacity

    def _too_large(self, what: str, where: str) -> CapacityError:
        total = self._cache.capacity * self.config.block
        hint = "Give the stages a larger kv_tokens, or ask for less."
        return CapacityError(f"{what} and the KV cache holds {total}", where=where, hint=hint)

    def _empty_cache(self) -> PrefixCache:
        config = self.config
        return PrefixCache(config.kv_tokens // config.block, config.block, config.prefix_cache)
