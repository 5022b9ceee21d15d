"""Random interleavings of everything a driver can do, against a chain that would show any wrong row."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from math import ceil

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from planted_drafter import PlantedDrafter
from simulated_chain import VOCABULARY, Answers, Chain, reference, request, run

from pipeline.admission import BATCH_PATIENCE_SECONDS
from pipeline.messages import Failed, Finished, Request, Service, StageTiming, StepResult
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig
from pipeline.speculation.config import SpeculationConfig
from shards.errors import CapacityError, EdgeAgentError, OverloadedError, RequestError, StageError

CONTEXT = 34


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, cancels, sends and delivers at random; whatever the order, the answers must be the reference's."""

    @initialize(
        block=st.sampled_from([2, 4]),
        capacity=st.integers(3, 12),
        stages=st.integers(1, 3),
        budget=st.integers(1, 12),
        most=st.integers(1, 6),
        prefix_cache=st.booleans(),
        runs_ahead=st.booleans(),
        step_times=st.sampled_from([None, ((1, 1.0), (8, 1.1)), ((1, 1.0), (2, 3.0), (8, 4.0))]),
        target_tbt_ms=st.sampled_from([None, 4.0, 30.0, 150.0]),
        mixed=st.booleans(),
        max_waiting=st.sampled_from([2, 256]),
        timed=st.booleans(),
        drafts=st.sampled_from([None, None, 0.0, 0.5, 0.9, 1.0]),
        draft_tokens=st.sampled_from([None, 1, 3, 10]),
        asynchronous=st.booleans(),
        patience=st.integers(0, 2),
        cost=st.sampled_from([0.0, 0.1, 5.0]),
        free=st.sampled_from([0.0, 0.3]),
        link_ms=st.sampled_from([0.0, 0.0, 4.0, 100.0]),
        detour_ms=st.sampled_from([None, 0.0]),
        seed=st.integers(0, 9),
        hears=st.booleans(),
    )
    def start(
        self,
        block: int,
        capacity: int,
        stages: int,
        budget: int,
        most: int,
        prefix_cache: bool,
        runs_ahead: bool,
        step_times: tuple[tuple[int, float], ...] | None,
        target_tbt_ms: float | None,
        mixed: bool,
        max_waiting: int,
        timed: bool,
        drafts: float | None,
        draft_tokens: int | None,
        asynchronous: bool,
        patience: int,
        cost: float,
        free: float,
        link_ms: float,
        detour_ms: float | None,
        seed: int,
        hears: bool,
    ) -> None:
        self.config = SchedulerConfig(
            kv_tokens=capacity * block + 1,
            block=block,
            context_length=CONTEXT,
            stages=stages,
            token_budget=budget,
            max_sequences=most,
            prefix_cache=prefix_cache,
            runs_ahead=runs_ahead,
            step_times=step_times,
            link_ms=link_ms,
            detour_ms=detour_ms,
            target_tbt_ms=target_tbt_ms,
            mixed=mixed,
            max_waiting=max_waiting,
            speculation=SpeculationConfig(draft_tokens, asynchronous),
        )
        self.drafter = None if drafts is None else PlantedDrafter(seed, drafts, stages, patience, cost, free)
        self.hears = hears
        """Whether stages are told in time of what is void."""
        self.timed = timed
        """Whether results tell what the steps took."""
        self.capacity = capacity * block
        self.scheduler = Scheduler(self.config, self.drafter)
        self.chain, self.answers = Chain.of(self.scheduler), Answers()
        self.requests: dict[str, Request] = {}
        self.now = 0.0
        self.patient: set[str] = set()
        """Batch requests that may have waited long enough to give way no more."""
        self.batch_turn = 0.0
        """When a batch request that had not run yet was let in."""
        self.suspect = -1
        """Last step that may fail because one before it did."""

    @rule(
        shared=st.integers(0, 8),
        own=st.lists(st.integers(0, 3), max_size=6),
        max_tokens=st.integers(1, 30),
        stops=st.frozensets(st.integers(0, VOCABULARY - 1), max_size=3),
        client=st.sampled_from("xyz"),
        priority=st.integers(0, 2),
        service=st.sampled_from(["interactive", "batch"]),
    )
    def add(
        self,
        shared: int,
        own: list[int],
        max_tokens: int,
        stops: frozenset[int],
        client: str,
        priority: int,
        service: Service,
    ) -> None:
        prompt = [*range(shared), *own]
        more = {"stop_tokens": stops, "client": client, "priority": priority, "service": service}
        wanted = request(f"r{len(self.requests)}", prompt, max_tokens, **more)
        waiting = self.scheduler.snapshot().waiting
        if self.drafter is not None:
            self.drafter.requests[wanted.id] = wanted
        try:
            self.scheduler.add(wanted, self.now)
        except RequestError:
            assert not prompt
        except OverloadedError as error:
            assert waiting == self.config.max_waiting and 1 <= error.retry_seconds <= 60
        except CapacityError:
            assert len(prompt) > self.capacity
        else:
            assert waiting < self.config.max_waiting
            self.requests[wanted.id] = wanted

    @precondition(lambda self: self.requests)
    @rule(pick=st.randoms(use_true_random=False))
    def cancel(self, pick: random.Random) -> None:
        name = pick.choice(list(self.requests))
        events = self.scheduler.cancel(name, self.now)
        if name in self.answers.ended:
            assert events == []
        else:
            assert isinstance(events[0], Finished) and events[0].reason == "cancelled"
        self.answers.take(events)

    @rule(most=st.integers(1, 3))
    def send(self, most: int) -> None:
        for _ in range(most):
            before = self._states()
            if step := self.scheduler.next_step(self.now):
                assert step.rows or step.operations
                assert len(step.tokens) == sum(rows.count for rows in step.rows) <= self.config.token_budget
                assert len({rows.sequence for rows in step.rows}) == len(step.rows) <= self.config.max_sequences
                self.chain.send(step)
            self._check_classes(before, self._states())

    def _states(self) -> dict[str, str]:
        return {told.id: told.state for told in self.scheduler.requests(self.now)}

    def _check_classes(self, before: dict[str, str], after: dict[str, str]) -> None:
        """No batch request is let in while an interactive one waits, unless batch requests have waited long."""
        let_in = [
            name
            for name, state in after.items()
            if state in ("prefill", "decode")
            and before[name] in ("waiting", "preempted")
            and self.requests[name].service == "batch"
        ]
        waiting = [
            name for name, state in after.items() if state == "waiting" and self.requests[name].service == "interactive"
        ]
        if self.now - self.batch_turn >= BATCH_PATIENCE_SECONDS:
            self.patient.update(let_in)
        assert not waiting or self.patient.issuperset(let_in)
        if any(before[name] == "waiting" for name in let_in):
            self.batch_turn = self.now

    @precondition(lambda self: self.chain.sent)
    @rule(most=st.integers(1, 3), seconds=st.floats(0, 5), ms=st.floats(0, 200))
    def deliver(self, most: int, seconds: float, ms: float) -> None:
        self.now += seconds
        for _ in range(min(most, len(self.chain.sent))):
            result = self.chain.deliver()
            if self.timed:
                timing = StageTiming(wait=0.0, compute=1e3 * ms, send=0.0, queued=1e3 * ms)
                result = replace(result, timings=(timing,) * self.config.stages)
            self._complete(result)

    @rule(turns=st.integers(4, 24), ahead=st.integers(1, 4))
    def work(self, turns: int, ahead: int) -> None:
        """Go on for a while, results lagging behind by up to `ahead` steps."""
        for _ in range(turns):
            self.send(1)
            if len(self.chain.sent) >= min(ahead, self.config.stages):
                self._complete(self.chain.deliver())

    @precondition(lambda self: self.chain.sent and len(self.chain.log) % 4 == 0)
    @rule()
    def fail_a_step(self) -> None:
        result = self.chain.deliver(fail=True)
        self.suspect = self.chain.log[-1].number
        self._complete(result)

    @precondition(lambda self: len(self.chain.log) % 8 == 7)
    @rule()
    def lose_the_chain(self) -> None:
        late = [self.chain.deliver() for _ in range(len(self.chain.sent))]
        events = self.scheduler.fail_all(StageError("the stage has gone"), self.now)
        assert {event.request for event in events} == self.requests.keys() - self.answers.ended.keys()
        self.answers.take(events)
        self.chain = Chain.of(self.scheduler)
        for result in late:
            assert self.scheduler.complete(result, self.now) == []

    @rule(number=st.sampled_from([-1, 10**9]))
    def hear_of_an_unknown_step(self, number: int) -> None:
        assert self.scheduler.complete(StepResult(number, ()), self.now) == []

    def _complete(self, result: StepResult) -> None:
        if result.error is not None:
            assert result.number <= self.suspect
            self.suspect = self.chain.log[-1].number  # what was sent meanwhile may rely on it
        self.answers.take(self.scheduler.complete(result, self.now))
        if self.hears:
            self.chain.cancelled.update(self.scheduler.take_cancelled())

    @invariant()
    def in_flight_is_bounded(self) -> None:
        if hasattr(self, "scheduler"):
            assert len(self.chain.sent) == self.scheduler.snapshot().in_flight
            if not self.timed:
                times = self.config.step_times
                under_way = ceil(self.config.link_ms / times[0][1]) if times else 0
                most = 2 * self.config.stages + under_way + self.config.runs_ahead
                assert len(self.chain.sent) <= most
            on_their_way = Counter(rows.sequence for step in self.chain.sent for rows in step.rows if rows.sample)
            if self.drafter is None:
                assert max(on_their_way.values(), default=0) <= 1 + self.config.runs_ahead

    @invariant()
    def kv_adds_up(self) -> None:
        if hasattr(self, "scheduler"):
            shot = self.scheduler.snapshot()
            assert shot.kv_used >= 0 and shot.kv_kept >= 0 and shot.kv_used + shot.kv_kept <= shot.kv_total
            assert shot.running <= self.config.max_sequences
            assert shot.running + shot.waiting + shot.preempted == len(self.requests) - len(self.answers.ended)

    @invariant()
    def what_is_told_of_requests_adds_up(self) -> None:
        if hasattr(self, "scheduler"):
            shot, requests = self.scheduler.snapshot(), self.scheduler.requests(self.now)
            assert {told.id for told in requests} == self.requests.keys() - self.answers.ended.keys()
            states = Counter(told.state for told in requests)
            assert (states["waiting"], states["preempted"]) == (shot.waiting, shot.preempted)
            waiting = [self.requests[told.id].service for told in requests if told.state == "waiting"]
            assert waiting.count("batch") == shot.waiting_batch and shot.paused <= shot.preempted
            assert shot.cached_tokens <= shot.prompt_tokens and shot.hits <= shot.lookups
            assert 0 <= shot.prompt_rows <= self.config.token_budget
            assert states["prefill"] + states["decode"] == shot.running
            for told in requests:
                assert told.cached_tokens <= told.prompt_tokens and told.age_seconds >= 0
                assert told.completion_tokens == len(self.answers.of(told.id)) <= told.max_tokens
                assert 0 <= told.done_tokens <= told.prompt_tokens + told.completion_tokens

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        while self.chain.sent:
            self._complete(self.chain.deliver())
        run(self.scheduler, self.chain, self.answers, self.now, drafter=self.drafter)
        assert self.answers.ended.keys() == self.requests.keys()
        if self.drafter is not None:
            assert sorted(self.drafter.ended) == sorted(self.requests)
        for name, wanted in self.requests.items():
            self._check(wanted, self.answers.of(name), self.answers.ended[name])
        shot = self.scheduler.snapshot()
        assert (shot.kv_used, shot.running, shot.waiting, shot.preempted) == (0, 0, 0, 0)
        assert self.scheduler._room.backlog == 0
        for stage in self.chain.stages:
            used = stage.table.capacity - stage.table.free_blocks
            assert used * stage.table.block <= shot.kv_kept
        self._fill_everything()

    def _check(self, wanted: Request, got: list[int], end: Finished | Failed) -> None:
        expected = reference(wanted, self.config.stages, min(CONTEXT, self.capacity + 1))
        assert end.usage.prompt == len(wanted.prompt) > end.usage.cached
        if isinstance(end, Failed):
            assert isinstance(end.error, EdgeAgentError) and not isinstance(end.error, CapacityError)
            assert got == expected[: len(got)]
        elif end.reason == "cancelled":
            assert got == expected[: len(got)]
        else:
            stopped = expected[-1] in wanted.stop_tokens
            assert end.reason == ("stop" if stopped else "length")
            assert got == (expected[:-1] if stopped else expected)
            assert end.usage.completion == len(expected)

    def _fill_everything(self) -> None:
        """One more request, as large as the cache, has the whole of it."""
        whole = request("whole", [96] * min(self.capacity, CONTEXT - 1), 1)
        if self.drafter is not None:
            self.drafter.requests[whole.id] = whole
        self.scheduler.add(whole, self.now)
        run(self.scheduler, self.chain, self.answers, self.now, drafter=self.drafter)
        assert self.answers.of("whole") == reference(whole, self.config.stages)


SchedulerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
