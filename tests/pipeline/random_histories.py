"""Whole lives of a scheduler, made from a seed: who asks for what and when, who leaves, how late results come.

Every step that is sent is checked, against what the scheduler says of itself and against what it was told.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from simulated_chain import VOCABULARY, Answers, Chain, reference

from pipeline.budget import LEAST_CHUNK
from pipeline.messages import Finished, Fork, Free, Open, Request, RequestEvent, Sampling, Step
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig
from shards.blocks import BlockTable

CONTEXT = 80
NEVER = -1
"""A tick."""
_TABLES = (None, ((1, 1.0), (64, 64.0)), ((1, 8.0), (4, 9.0), (8, 18.0), (32, 42.0)), ((1, 2.0), (2, 2.1), (16, 9.0)))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request, and the ticks of its coming and, if its client leaves, of that."""

    request: Request
    at: int
    leaves: int | None = None


@dataclass(frozen=True, slots=True)
class History:
    """All that happens to a scheduler."""

    config: SchedulerConfig
    arrivals: tuple[Arrival, ...]
    lateness: tuple[int, ...]
    """How many steps are in flight before a result is taken, tick by tick, over and over."""
    tick_seconds: float

    @classmethod
    def of(cls, seed: int) -> History:
        """A random one."""
        pick = random.Random(seed)
        block = pick.choice((2, 4, 8))
        capacity = pick.randint(3, 20)
        config = SchedulerConfig(
            kv_tokens=capacity * block + pick.randrange(block),
            block=block,
            context_length=CONTEXT,
            stages=pick.randint(1, 4),
            token_budget=pick.choice((1, 3, 16, 64, 64)),
            max_sequences=pick.choice((1, 2, 4, 16, 16)),
            prefix_cache=pick.random() < 0.7,
            runs_ahead=pick.random() < 0.5,
            step_times=pick.choice(_TABLES),
            target_tbt_ms=pick.choice((None, 8.0, 40.0, 100.0)),
            mixed=pick.random() < 0.8,
        )
        openings = [[pick.randrange(VOCABULARY) for _ in range(pick.randint(4, 24))] for _ in range(2)]
        span = pick.choice((1, 10, 60))
        arrivals = tuple(
            _arrival(pick, f"r{number}", number, openings, capacity * block, span)
            for number in range(pick.randint(2, 12))
        )
        lateness = tuple(pick.choice((1, 2, 3, 9)) for _ in range(7))
        return cls(config, arrivals, lateness, pick.choice((0.0, 0.01, 1.0, 20.0)))

    def with_leaving(self, name: str, at: int) -> History:
        """The same, but for one who leaves at a tick, and nobody else."""
        return replace(
            self,
            arrivals=tuple(
                replace(arrival, leaves=at if arrival.request.id == name else None) for arrival in self.arrivals
            ),
        )


def _arrival(pick: random.Random, name: str, number: int, openings: list[list[int]], room: int, span: int) -> Arrival:
    own = [pick.randrange(VOCABULARY) for _ in range(pick.choice((1, 1, 3, 12, 40)))]
    prompt = (pick.choice(openings) if pick.random() < 0.6 else []) + own
    wanted = Request(
        name,
        tuple(prompt[: min(room, CONTEXT - 1)]),
        Sampling(temperature=0.0, seed=number),  # tells sequences whose they are
        pick.choice((1, 2, 8, 20, 40)),
        frozenset(pick.sample(range(VOCABULARY), pick.choice((0, 0, 2)))),
        client=pick.choice("xyz"),
        priority=pick.choice((0, 0, 0, 2)),
        service=pick.choice(("interactive", "interactive", "batch")),
    )
    at = pick.randrange(span)
    return Arrival(wanted, at, at + pick.choice((0, 1, 3, 10, 30)) if pick.random() < 0.3 else None)


@dataclass
class Life:
    """A history as it goes."""

    history: History
    steps: int = 0
    waited: dict[str, int] = field(default_factory=dict)
    """Steps sent from a request's coming to its end."""

    def __post_init__(self) -> None:
        config = self.history.config
        self.scheduler = Scheduler(config)
        self.chain, self.answers = Chain.of(self.scheduler), Answers()
        self.books = Books(config)
        self.requests = {arrival.request.id: arrival.request for arrival in self.history.arrivals}
        self.now = 0.0
        self.ticks = 0
        self._came: dict[str, int] = {}

    def run(self) -> Life:
        """To the end of every request, and then to that of every step; checks all that must hold."""
        left = max(arrival.at for arrival in self.history.arrivals)
        while self.ticks <= left or not self.scheduler.is_idle:
            self._tick()
            assert self.steps < 100_000, "it does not end"
        assert self.answers.ended.keys() == self.requests.keys()
        for name, wanted in self.requests.items():
            self._check_answer(wanted)
            assert self.waited[name] <= self.bound, f"{name} had {self.waited[name]} steps sent before its end"
        self._check_that_nothing_is_held()
        return self

    @property
    def bound(self) -> int:
        """Steps after which everybody must have ended.

        The oldest request moves on by a row or more each time a step of its goes round, and others have at most two
        steps a stage, and one ahead, sent meanwhile.
        """
        rows = sum(len(wanted.prompt) + wanted.max_tokens + 1 for wanted in self.requests.values())
        return (2 * self.history.config.stages + 2) * rows

    def _tick(self) -> None:
        for arrival in self.history.arrivals:
            if arrival.at == self.ticks:
                self._came[arrival.request.id] = self.steps
                self.scheduler.add(arrival.request, self.now)
        for arrival in self.history.arrivals:
            if arrival.leaves == self.ticks:
                self._take(self.scheduler.cancel(arrival.request.id, self.now))
        late = self.history.lateness[self.ticks % len(self.history.lateness)]
        while len(self.chain.sent) < late and (step := self.scheduler.next_step(self.now)):
            self.steps += 1
            self.chain.send(step)
            self.books.enter(step, self.scheduler, self.now)
            self._check_size(step)
        if self.chain.sent:
            result = self.chain.deliver()
            self.books.compare(result.number, self.chain)
            assert result.error is None
            self._take(self.scheduler.complete(result, self.now))
        else:
            assert self.scheduler.is_idle, "nothing to send and nothing to wait for, but not idle: a deadlock"
        self.now += self.history.tick_seconds
        self.ticks += 1

    def _take(self, events: Iterable[RequestEvent]) -> None:
        events = list(events)
        before = self.answers.ended.keys() | set()
        self.answers.take(events)
        for name in self.answers.ended.keys() - before:
            self.waited[name] = self.steps - self._came[name]

    def _check_size(self, step: Step) -> None:
        config = self.history.config
        assert len(step.tokens) == sum(rows.count for rows in step.rows) <= config.token_budget
        assert len({rows.sequence for rows in step.rows}) == len(step.rows) <= config.max_sequences
        if config.step_times and config.target_tbt_ms and self.books.is_pressed and self.books.prompts > LEAST_CHUNK:
            # an answer's row passes every stage between two of its tokens
            assert config.stages * self._step_ms(self.books.answers, self.books.prompts) <= config.target_tbt_ms

    def _step_ms(self, answers: int, prompts: int) -> float:
        """By the table that the scheduler was given: it learns no other one, for no result tells times."""
        rows, ms = zip(*(self.history.config.step_times or ()), strict=True)
        slope = (ms[-1] - ms[-2]) / (rows[-1] - rows[-2])
        beyond = slope * max(0, answers - rows[-1])
        return float(np.interp(answers, rows, ms)) + beyond + slope * prompts

    def _check_answer(self, wanted: Request) -> None:
        config = self.history.config
        got, end = self.answers.of(wanted.id), self.answers.ended[wanted.id]
        assert isinstance(end, Finished)
        capacity = config.kv_tokens // config.block * config.block
        expected = reference(wanted, config.stages, min(config.context_length, capacity + 1))
        if end.reason == "cancelled":
            assert any(arrival.leaves is not None for arrival in self.history.arrivals if arrival.request is wanted)
            assert got == expected[: len(got)]
        else:
            stopped = expected[-1] in wanted.stop_tokens
            assert end.reason == ("stop" if stopped else "length")
            assert got == (expected[:-1] if stopped else expected)

    def _check_that_nothing_is_held(self) -> None:
        told = self.scheduler.snapshot()
        assert (told.kv_used, told.running, told.waiting, told.preempted, told.in_flight) == (0, 0, 0, 0, 0)
        if not self.history.config.prefix_cache:
            assert told.kv_kept == 0
        for stage in self.chain.stages:
            held = stage.table.capacity - stage.table.free_blocks
            assert held == 0 if not told.kv_kept else held * stage.table.block <= told.kv_kept


class Books:
    """What the steps told the stages to hold, kept beside the scheduler's own account, and the stages'."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._table = BlockTable(config.kv_tokens // config.block, config.block)
        self._requests: dict[int, int] = {}
        """Whose a sequence is, by the seed of its sampling."""
        self._given: dict[int, int] = {}
        """Tokens that a sequence's blocks were taken for when it was opened."""
        self._writing: set[int] = set()
        """Sequences whose answer has begun: all rows of their prompts have been sent."""
        self.answers, self.prompts = 0, 0
        """Rows of the last step that was entered."""
        self.is_pressed = False
        """Whether there were answers that it could delay."""
        self._lengths: dict[int, dict[int, int]] = {}
        """Tokens of each sequence after each step in flight."""

    def enter(self, step: Step, scheduler: Scheduler, now: float) -> None:
        """Enter a step that was just made, and compare with what the scheduler says."""
        told = {int(request.id.removeprefix("r")): request for request in scheduler.requests(now)}
        for operation in step.operations:
            match operation:
                case Open(sequence, sampling):
                    self._requests[sequence] = sampling.seed
                    owner = told.get(sampling.seed)
                    self._given[sequence] = owner.prompt_tokens + owner.completion_tokens if owner else 0
                case Fork(source, target, length):
                    self._table.fork(source, target, length)
                case Free(sequence):
                    self._requests.pop(sequence, None)  # what was kept of one is never opened
                    self._writing.discard(sequence)
                    self._table.free(sequence)
        self._table.extend(step.rows)
        running = {n for n, one in told.items() if one.state in ("prefill", "decode")}
        latest = {owner: sequence for sequence, owner in self._requests.items()}
        self.is_pressed = any(latest[owner] in self._writing for owner in running)
        self.answers = sum(rows.sequence in self._writing for rows in step.rows)
        self.prompts = len(step.tokens) - self.answers
        self._writing.update(rows.sequence for rows in step.rows if rows.sample)
        self._lengths[step.number] = {sequence: self._table.length(sequence) for sequence in self._requests}
        self._compare_with_scheduler(scheduler, [latest[owner] for owner in running])

    def _compare_with_scheduler(self, scheduler: Scheduler, running: Iterable[int]) -> None:
        """Blocks of those that run are theirs from when they are taken, which is before all their rows are sent."""
        block = self._table.block
        held: set[int] = set()
        reserved = 0
        for sequence in running:
            blocks = list(self._table.blocks(sequence)) if sequence in self._table else []
            held.update(blocks)
            reserved += max(0, -(-self._given[sequence] // block) - len(blocks))
        shot = scheduler.snapshot()
        used = self._table.capacity - self._table.free_blocks
        assert shot.kv_used == (len(held) + reserved) * block
        assert shot.kv_kept == (used - len(held)) * block
        assert shot.kv_used + shot.kv_kept <= shot.kv_total == self._table.capacity * block

    def compare(self, number: int, chain: Chain) -> None:
        """Every stage has just done a step: it holds what was entered for it."""
        lengths = self._lengths.pop(number)
        for stage in chain.stages:
            assert stage.opened.keys() == lengths.keys()
            assert {sequence: stage.table.length(sequence) for sequence in lengths} == lengths
