"""Who runs: slots and KV cache, who is let in, and who gives way."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence as Line

from pipeline.admission import BATCH_PATIENCE_SECONDS, AdmissionQueue
from pipeline.prefix_cache import PrefixCache
from pipeline.scheduler_config import SchedulerConfig
from pipeline.sequence import Sequence
from pipeline.step_times import StepTimes

_NO_AGEING = 1e-6
"""Where waiting makes up for no priority."""


class Room:
    """The sequences that have not ended: each runs, waits for its first turn, or had to stop and waits to go on.

    Who has to stop leaves what it has in the prefix cache, and goes on from what is still there then; so whether
    it was kept or has to be computed again is up to what was needed meanwhile. Who stops for whom follows one order
    (`Sequence.precedence`: interactive before batch, then by first admission), and the first of it never stops, so
    no two stop one another for ever.

    Args:
        config: Of the scheduler.
        times: What prompts take.
    """

    def __init__(self, config: SchedulerConfig, times: StepTimes) -> None:
        self._config, self._times = config, times
        self.running: dict[Sequence, None] = {}
        self.prefilling: dict[Sequence, None] = {}
        """Those of the running that have rows to send before the next token can be sampled, oldest first."""
        self.ready: dict[Sequence, None] = {}
        """Those of the running that have an answer row to send, longest ready first."""
        self.preempted: list[Sequence] = []
        """Had to stop for room; they go before all that wait. Oldest first."""
        self.paused: list[Sequence] = []
        """Batch requests that had to stop; they go before batch requests that wait. Oldest first."""
        self.cache = self._empty_cache()
        self.prompt_tokens = self.cached_tokens = self.preemptions = self.lookups = self.hits = 0
        """Counters, see `SchedulerSnapshot`."""
        self._waiting = AdmissionQueue(config.ageing)
        self._waiting_tokens = 0
        self._yielding: dict[Sequence, None] = {}
        """Those of the running that give way to interactive requests."""
        self._batch_turn = 0.0
        """When a batch request last had a turn, or began to wait for one."""
        self._turns = 0

    # Coming and going

    def add(self, sequence: Sequence, now: float) -> None:
        """A request comes."""
        self._waiting.add(sequence, now)
        self._waiting_tokens += len(sequence.request.prompt)

    def end(self, sequence: Sequence, keep: bool) -> None:
        """Take it out of wherever it is; keep its cache for others to fork, or free it everywhere."""
        if sequence in self.running:
            self._leave(sequence)
            if keep:
                self.cache.rest(sequence.id, sequence.held)
            else:
                self.cache.free(sequence.id)
        elif sequence.turn < 0:
            self._waiting.remove(sequence)
            self._waiting_tokens -= len(sequence.request.prompt)
        else:
            (self.paused if sequence in self.paused else self.preempted).remove(sequence)

    def clear_cache(self) -> None:
        """The stages hold nothing any more."""
        evicted = self.cache.evicted
        self.cache = self._empty_cache()
        self.cache.evicted = evicted

    def _empty_cache(self) -> PrefixCache:
        config = self._config
        return PrefixCache(config.kv_tokens // config.block, config.block, config.prefix_cache, config.kept_sequences)

    def charge(self, sequence: Sequence, rows: int) -> None:
        """Count rows that are run for a client."""
        request = sequence.request
        self._waiting.charge(request.client, rows, request.service)

    @property
    def waiting(self) -> int:
        """Requests that have had no turn yet."""
        return len(self._waiting)

    @property
    def backlog(self) -> int:
        """Rows of prompts to run, of all that could run them now."""
        rows = sum(sequence.unsent for sequence in self.prefilling)
        if len(self.running) < self._slots:
            rows += self._waiting_tokens + sum(stopped.unsent for stopped in (*self.preempted, *self.paused))
        return rows

    # Who goes first

    def rank(self, sequence: Sequence, cached: int = 0) -> tuple[bool, float]:
        """Of prompts the smallest goes first: shortest remaining first, where waiting counts as much as work.

        So a prompt of a second's work is passed by shorter ones that come within a second of it, and by no others. A
        level of priority weighs as much as it does in the waiting queue. Of one that waits, the `cached` tokens need
        no row.
        """
        row_ms = self._times.prompt_row_ms(sequence.sent) or 1.0  # while nothing is known, only their order matters
        seconds = sequence.arrived + 1e-3 * row_ms * (sequence.unsent - cached)
        return sequence.yields, seconds - sequence.request.priority / (self._config.ageing or _NO_AGEING)

    def admit(self, now: float, before: Sequence | None = None) -> Sequence | None:
        """Let in whose turn it is; None if that is nobody, does not fit yet, or is not to go before `before`.

        A block for each running sequence is left free, or they would soon preempt one another.
        """
        sequence = self._next(now)
        if sequence is None or sequence.awaiting or len(self.running) >= self._slots:
            return None
        if before is not None and self.rank(sequence, self.cache.cached(sequence.tokens)) >= self.rank(before):
            return None
        opened = self.cache.open(sequence.tokens, spare=len(self.running))
        if opened is None:
            return None
        sequence.id, cached = opened
        sequence.sent = sequence.held = sequence.done = cached
        self.cache.operations.append(sequence.opening)
        if sequence.turn < 0:
            self._begin(sequence, now)
        else:
            (self.paused if sequence in self.paused else self.preempted).remove(sequence)
        if sequence.request.service == "batch":
            self._batch_turn = now
        self.running[sequence] = self.prefilling[sequence] = None
        if sequence.yields:
            self._yielding[sequence] = None
        return sequence

    def make_way(self, now: float) -> None:
        """Stop as many batch requests, youngest first, as keep an interactive one from running.

        To be done before the rows of a step are chosen.
        """
        if not self._yielding:
            return
        sequence = self._next(now)
        if sequence is None or sequence.yields or sequence.awaiting:
            return
        victims = sorted(self._yielding, key=lambda running: running.turn, reverse=True)
        if not self._would_fit(sequence, victims):
            return  # it would be for nothing
        count = next(count for count in range(len(victims) + 1) if self._would_fit(sequence, victims[:count]))
        for victim in victims[:count]:
            self._stop(victim, now)

    def make_room(self, sequence: Sequence, now: float) -> bool:
        """Find a block for an answer row if it needs one; False if the sequence itself had to stop."""
        while not self.cache.grow(sequence.id, len(sequence.tokens)):
            last = max(self.running, key=lambda running: running.precedence)
            self._stop(last, now)
            if last is sequence:
                return False
        return True

    @property
    def _slots(self) -> int:
        return min(self._config.max_sequences, self._config.token_budget)

    def _next(self, now: float) -> Sequence | None:
        """Whose turn it is."""
        if self.preempted:
            return self.preempted[0]
        if self.paused and now - self._batch_turn >= BATCH_PATIENCE_SECONDS:
            self.paused[0].yields = False
            return self.paused[0]
        first = self._waiting.peek(now)
        if first is not None and first.yields and self._waiting.has_interactive:
            first.yields = False  # it is its turn all the same, so it has waited enough
        elif self.paused and (first is None or first.yields):
            return self.paused[0]
        return first

    def _begin(self, sequence: Sequence, now: float) -> None:
        self._waiting.pop(sequence, now)
        self._waiting_tokens -= len(sequence.request.prompt)
        sequence.begun, sequence.turn, sequence.cached = now, self._turns, sequence.sent
        self._turns += 1
        self.prompt_tokens += len(sequence.request.prompt)
        self.cached_tokens += sequence.cached
        self.lookups += 1
        self.hits += sequence.cached > 0

    def _would_fit(self, sequence: Sequence, without: Line[Sequence]) -> bool:
        count = len(self.running) - len(without)
        return count < self._slots and self.cache.fits(sequence.tokens, count, [victim.id for victim in without])

    def _stop(self, sequence: Sequence, now: float) -> None:
        """Give its place to another; a token still in flight will be taken all the same."""
        self._leave(sequence)
        self.cache.rest(sequence.id, sequence.held)
        sequence.forget_guesses(0)
        sequence.id, sequence.sent, sequence.held, sequence.done = -1, 0, 0, 0
        if sequence.yields and not self.paused:
            self._batch_turn = now
        insort(self.paused if sequence.yields else self.preempted, sequence, key=lambda stopped: stopped.turn)
        self.preemptions += 1

    def _leave(self, sequence: Sequence) -> None:
        del self.running[sequence]
        self.prefilling.pop(sequence, None)
        self.ready.pop(sequence, None)
        self._yielding.pop(sequence, None)
