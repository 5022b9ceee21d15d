"""A chain of stages with real block tables and a fake model, for tests of the scheduler.

The model's hidden state of a row is a hash of everything the stage has in its KV cache up to that row, read through
the block table cell by cell, so a wrong past, position, fork, replay or reused block gives another text than
`reference` does.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pipeline.messages import (
    NOT_YET,
    Failed,
    Finished,
    Fork,
    Free,
    Open,
    Operation,
    Request,
    RequestEvent,
    Sampling,
    StageTiming,
    Step,
    StepResult,
    Token,
    TokenEvent,
)
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig
from shards.blocks import BlockTable
from shards.errors import EdgeAgentError
from shards.runtime import SequenceRows

if TYPE_CHECKING:
    from planted_drafter import PlantedDrafter

VOCABULARY = 97


def reference(request: Request, stages: int, context: int = 10**9) -> list[int]:
    """The answer of the unsplit, uncached, unbatched model, with the stop token if it ends in one."""
    tokens = list(request.prompt)
    while len(tokens) < min(len(request.prompt) + request.max_tokens, context):
        hidden = tokens
        for _ in range(stages):
            hidden = [_mix(hidden[: i + 1]) for i in range(len(hidden))]
        tokens.append(hidden[-1] % VOCABULARY)
        if tokens[-1] in request.stop_tokens:
            break
    return tokens[len(request.prompt) :]


def request(name: str = "a", prompt: Iterable[int] = (1, 2, 3), max_tokens: int = 4, **more: object) -> Request:
    return Request(name, tuple(prompt), Sampling(temperature=0.0), max_tokens, **more)  # type: ignore[arg-type]


class Stage:
    """A stage with a KV cache of `capacity` blocks; it knows nothing but what steps tell it."""

    def __init__(self, capacity: int, block: int) -> None:
        self.table = BlockTable(capacity, block)
        self.opened: dict[int, Open] = {}
        self._known: set[int] = set()
        """Those that were opened or forked, and not freed."""
        self._cells = [0] * (capacity * block)

    def apply(self, operation: Operation) -> None:
        match operation:
            case Open():
                assert operation.sequence not in self.opened
                self.opened[operation.sequence] = operation
                self._known.add(operation.sequence)
            case Fork(source, target, length):
                self.table.fork(source, target, length)
                self._known.add(target)
            case Free(sequence):
                self._known.remove(sequence)  # a KeyError: freed twice, or never there
                self.opened.pop(sequence, None)
                self.table.free(sequence)

    def run(self, rows: tuple[SequenceRows, ...], x: list[int]) -> list[int]:
        self.table.extend(rows)
        out, given = [], iter(x)
        for part in rows:
            assert part.sequence in self.opened
            for position in range(part.past, part.past + part.count):
                cells = self._cells_of(part.sequence, position + 1)
                self._cells[cells[-1]] = next(given)
                out.append(_mix([self._cells[cell] for cell in cells]))
        return out

    def _cells_of(self, sequence: int, length: int) -> list[int]:
        block, blocks = self.table.block, self.table.blocks(sequence)
        return [blocks[i // block] * block + i % block for i in range(length)]


class Chain:
    """The stages in a row. Steps are answered in order, when `deliver` is called."""

    def __init__(self, stages: list[Stage]) -> None:
        self.stages = stages
        self.sent: deque[Step] = deque()
        self.log: list[Step] = []
        self.latest: dict[tuple[int, int], int] = {}
        """What was sampled, by (sequence, position)."""
        self.last: dict[int, tuple[int, int]] = {}
        """Of each sequence, the position and token sampled last."""
        self.cancelled: dict[int, int] = {}
        """Of each sequence the last branch that is void, as the stages before the last one know."""

    @classmethod
    def of(cls, scheduler: Scheduler) -> Chain:
        """Stages that just hold what the scheduler was told they do; the inner blocks are half of the first's."""
        config = scheduler.config
        capacity = config.kv_tokens // config.block
        inner = config.block // 2 if config.block % 2 == 0 else config.block
        blocks = [config.block if i == 0 else inner for i in range(config.stages)]
        return cls([Stage(capacity * config.block // block, block) for block in blocks])

    def send(self, step: Step) -> None:
        self.sent.append(step)
        self.log.append(step)

    def deliver(self, fail: bool = False) -> StepResult:
        """Run the oldest step on every stage. `fail`: the last stage can't do its rows."""
        step = self.sent.popleft()
        x, error = self._filled(step), None
        rows = step.rows
        for stage in self.stages:
            for operation in step.operations:
                try:
                    stage.apply(operation)
                except EdgeAgentError as problem:
                    error = error or str(problem)
            if fail and stage is self.stages[-1]:
                error = error or "the last stage is out of order"
            rows, x = self._without_void(step, rows, x, is_tail=stage is self.stages[-1])
            if error is None:
                try:
                    x = stage.run(rows, x)
                except EdgeAgentError as problem:
                    error = str(problem)
        if error is not None:
            return StepResult(step.number, (), error=error)
        tokens, end = [], 0
        guesses = {verify.sequence: verify.tokens for verify in step.verifies}
        for part in rows:
            end += part.count
            for i in range(part.sample):
                position = part.past + part.count - part.sample + i + 1
                tokens.append(Token(part.sequence, position, x[end - part.sample + i] % VOCABULARY))
                self.last[part.sequence] = position, tokens[-1].token
                if i + 1 < part.sample and guesses[part.sequence][i + 1] != tokens[-1].token:
                    break
        self.latest.update(((token.sequence, token.position), token.token) for token in tokens)
        return StepResult(step.number, tuple(tokens))

    def _without_void(
        self, step: Step, rows: tuple[SequenceRows, ...], x: list[int], is_tail: bool
    ) -> tuple[tuple[SequenceRows, ...], list[int]]:
        """What a stage computes of a step: the tail knows which guesses were wrong, the others what they were told."""
        verifies = {verify.sequence: verify for verify in step.verifies}
        left, values, start = [], [], 0
        for part in rows:
            verify = verifies.get(part.sequence)
            is_void = verify is not None and (
                self.last.get(part.sequence) != (part.past + part.count - part.sample, verify.tokens[0])
                if is_tail
                else verify.branch <= self.cancelled.get(part.sequence, -1)
            )
            if not is_void:
                left.append(part)
                values += x[start : start + part.count]
            start += part.count
        return tuple(left), values

    def _filled(self, step: Step) -> list[int]:
        """The step's tokens, with those the head had not seen; 0 for one that was never sampled."""
        x, start = step.tokens.tolist(), 0
        for rows in step.rows:
            if x[start] == NOT_YET:
                assert rows.count == 1
                x[start] = self.latest.get((rows.sequence, rows.past), 0)
            start += rows.count
        return x


class Answers:
    """What the requests have got so far; each may end once."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.ended: dict[str, Finished | Failed] = {}

    def take(self, events: Iterable[RequestEvent]) -> None:
        for event in events:
            assert event.request not in self.ended, f"{event} after the end"
            if isinstance(event, TokenEvent):
                self.tokens.setdefault(event.request, []).append(event.token.token)
            else:
                self.ended[event.request] = event

    def of(self, name: str) -> list[int]:
        return self.tokens.get(name, [])


def run(
    scheduler: Scheduler,
    chain: Chain,
    answers: Answers,
    now: float = 0.0,
    most: int = 10_000,
    drafter: PlantedDrafter | None = None,
) -> None:
    """Send all there is and deliver, until the scheduler is idle."""
    for _ in range(most):
        while step := scheduler.next_step(now):
            chain.send(step)
        if scheduler.is_idle:
            return
        if not chain.sent and drafter is not None and drafter.waits:
            continue  # it will be ready
        assert chain.sent, "nothing to send and nothing to wait for, but not idle: a deadlock"
        answers.take(scheduler.complete(chain.deliver(), now))
        chain.cancelled.update(scheduler.take_cancelled())
    raise AssertionError("still not idle")


def scheduler(**more: Any) -> Scheduler:
    return Scheduler(SchedulerConfig(**{"kv_tokens": 256, "block": 4, "context_length": 128, **more}))


class Driven:
    """A scheduler, its chain and the answers."""

    def __init__(self, *requests: Request, **config: Any) -> None:
        self.scheduler = scheduler(**config)
        self.chain, self.answers = Chain.of(self.scheduler), Answers()
        self.requests = requests
        for wanted in requests:
            self.scheduler.add(wanted, 0.0)

    def send(self) -> Step:
        step = self.scheduler.next_step(0.0)
        assert step is not None
        self.chain.send(step)
        return step

    def deliver(self, **how: Any) -> StepResult:
        result = self.chain.deliver(**how)
        self.answers.take(self.scheduler.complete(result, 0.0))
        return result

    def cancel(self, name: str) -> None:
        self.answers.take(self.scheduler.cancel(name, 0.0))

    def finish(self) -> None:
        """Run to the end; every answer that was not ended otherwise is the reference's."""
        run(self.scheduler, self.chain, self.answers)
        stages = self.scheduler.config.stages
        for wanted in self.requests:
            end = self.answers.ended[wanted.id]
            if isinstance(end, Finished) and end.reason == "length":
                assert self.answers.of(wanted.id) == reference(wanted, stages)

    def until_preempted(self) -> Step:
        """Send and deliver, one step behind, until a step is sent that preempts."""
        while True:
            while step := self.scheduler.next_step(0.0):
                self.chain.send(step)
                if self.scheduler.snapshot().preempted:
                    return step
            self.deliver()


class TimedChain:
    """A chain whose stages take a modelled time for a step, on a clock (in milliseconds) that only the model moves.

    A result is `link_ms` on its way back. A row whose token is being sampled waits at the first stage for it.
    """

    def __init__(self, scheduler: Scheduler, step_ms: Callable[[int], float], link_ms: float = 0.0) -> None:
        self.scheduler, self.chain, self.answers = scheduler, Chain.of(scheduler), Answers()
        self.now = 0.0
        self.tokens_at: dict[str, list[float]] = {}
        """When each token of a request came."""
        self._step_ms, self._link_ms = step_ms, link_ms
        self._free_at = [0.0] * scheduler.config.stages
        self._sampled_at: dict[tuple[int, int], float] = {}
        """When the token of each (sequence, position) is sampled."""
        self._busy: list[list[tuple[float, float]]] = [[] for _ in self._free_at]
        self._due: list[tuple[float, int, tuple[StageTiming, ...]]] = []
        self._arrivals: list[tuple[float, int, Request]] = []

    def arrive(self, at: float, wanted: Request) -> None:
        heapq.heappush(self._arrivals, (at, len(self._arrivals), wanted))

    def run(self) -> None:
        while True:
            while self._arrivals and self._arrivals[0][0] <= self.now:
                self.scheduler.add(heapq.heappop(self._arrivals)[2], self.now / 1e3)
            while step := self.scheduler.next_step(self.now / 1e3):
                self._send(step)
            if not self._due and not self._arrivals:
                assert self.scheduler.is_idle
                return
            self.now = min(times[0][0] for times in (self._due, self._arrivals) if times)
            while self._due and self._due[0][0] <= self.now:
                _, _, timings = heapq.heappop(self._due)
                events = self.scheduler.complete(replace(self.chain.deliver(), timings=timings), self.now / 1e3)
                self.answers.take(events)
                for event in events:
                    if isinstance(event, TokenEvent):
                        self.tokens_at.setdefault(event.request, []).append(self.now)

    def busy(self, start: float, end: float) -> float:
        """The share of [start, end) in which stages worked, over all stages."""
        worked = sum(max(0.0, min(b, end) - max(a, start)) for spans in self._busy for a, b in spans)
        return worked / (end - start) / len(self._busy)

    def pauses(self, name: str) -> list[float]:
        """The times between the tokens of a request."""
        return [b - a for a, b in pairwise(self.tokens_at[name])]

    def stage_ms(self, step: Step) -> float:
        """What a step takes on each stage."""
        return self._step_ms(len(step.tokens)) if step.rows else 0.0

    def _send(self, step: Step) -> None:
        self.chain.send(step)
        at = self.now
        first = max([at, *(self._sampled_at.get((rows.sequence, rows.past), 0.0) for rows in step.rows)])
        timings = []
        for i, spans in enumerate(self._busy):
            start = max(first, at, self._free_at[i])
            end = start + self.stage_ms(step)
            timings.append(StageTiming(wait=0.0, compute=1e3 * (end - start), send=0.0, queued=1e3 * (start - at)))
            at = self._free_at[i] = end
            spans.append((start, end))
        self._sampled_at.update({(rows.sequence, rows.past + rows.count): at for rows in step.rows if rows.sample})
        heapq.heappush(self._due, (at + self._link_ms, step.number, tuple(timings)))


def _mix(values: list[int]) -> int:
    return hash(tuple(values)) & 0xFFFFFFFF
