from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulated_chain import Answers, Chain, reference, request, run

from pipeline.messages import Failed, Finished, Fork, Free, Open, Request, Sampling, Step, StepResult, TokenEvent
from pipeline.scheduler import Scheduler, SchedulerConfig
from shards.errors import CapacityError, ConfigurationError, RequestError, StageError


def scheduler(**more: Any) -> Scheduler:
    return Scheduler(SchedulerConfig(**{"kv_tokens": 256, "block": 4, "context_length": 128, **more}))


def step_of(it: Scheduler, now: float = 0.0) -> Step:
    step = it.next_step(now)
    assert step is not None
    return step


class Driven:
    """A scheduler, its chain and the answers."""

    def __init__(self, *requests: Request, **config: Any) -> None:
        self.scheduler = scheduler(**config)
        self.chain, self.answers = Chain.of(self.scheduler), Answers()
        self.requests = requests
        for wanted in requests:
            self.scheduler.add(wanted, 0.0)

    def send(self) -> Step:
        step = step_of(self.scheduler)
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


def two_in_a_small_cache() -> Driven:
    """Two stages, a step for each of two requests; `old` runs into the end of the cache and pushes `young` out."""
    return Driven(request("old", [1, 2, 3, 4], 11), request("young", [5], 12), stages=2, kv_tokens=16)


# What a step is made of


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("budget", [1, 3, 256])
def test_the_answers_are_those_of_the_unsplit_model(stages: int, budget: int) -> None:
    requests = [request(f"r{n}", range(n, 3 * n + 1), 3 * n + 1) for n in range(7)]
    driven = Driven(*requests, stages=stages, token_budget=budget, max_sequences=4)
    driven.finish()
    assert {end.reason for end in driven.answers.ended.values() if isinstance(end, Finished)} == {"length"}
    assert max(len(step.tokens) for step in driven.chain.log) <= budget


def test_a_long_prompt_fills_what_decode_rows_leave() -> None:
    driven = Driven(request("talking", [1], 50), token_budget=8)
    driven.send()
    driven.deliver()
    driven.scheduler.add(request("long", range(20), 1), 0.0)
    counts = []
    for _ in range(3):
        counts.append([(rows.count, rows.sample) for rows in driven.send().rows])
        driven.deliver()
    assert counts == [[(1, 1), (7, 0)], [(1, 1), (7, 0)], [(1, 1), (6, 1)]]


def test_chunks_of_one_prompt_follow_one_another_down_the_chain() -> None:
    driven = Driven(request("long", range(20), 3), token_budget=8, stages=3)
    rows = [driven.send().rows[0] for _ in range(3)]
    assert [(r.past, r.count, r.sample) for r in rows] == [(0, 8, 0), (8, 8, 0), (16, 4, 1)]
    assert driven.scheduler.next_step(0.0) is None
    driven.finish()


def test_a_lone_prompt_is_cut_so_that_its_chunks_overlap() -> None:
    times = tuple((rows, 2.0 + rows) for rows in (1, 64))
    whole, cut = (Driven(request("a", range(60), 1), stages=2, step_times=t) for t in (None, times))
    assert whole.send().rows[0].count == 60
    assert cut.send().rows[0].count < 60
    cut.finish()


def test_a_decoding_sequence_has_one_row_in_flight() -> None:
    driven = Driven(request("a", [1], 5), stages=3)
    for _ in range(4):
        driven.send()
        assert driven.scheduler.next_step(0.0) is None
        driven.deliver()


def test_sequences_join_and_leave_between_steps() -> None:
    driven = Driven(request("a", [1], 2), request("b", [2], 4))
    sizes = [len(driven.send().rows)]
    driven.deliver()
    driven.scheduler.add(request("c", [3], 2), 0.0)
    while not driven.scheduler.is_idle:
        sizes.append(len(driven.send().rows))
        driven.deliver()
    assert sizes == [2, 3, 2, 1]


def test_no_more_sequences_run_than_allowed() -> None:
    driven = Driven(*(request(f"r{i}", [i], 3) for i in range(5)), max_sequences=2)
    assert [rows.sequence for rows in driven.send().rows] == [0, 1]
    assert driven.scheduler.snapshot().waiting == 3
    driven.finish()


def test_the_tail_gets_the_history_only_where_sampling_needs_it() -> None:
    plain = request("plain", [1, 2], 3)
    careful = replace(plain, id="careful", sampling=Sampling(presence_penalty=1.0))
    operations = Driven(plain, careful).send().operations
    assert operations == (
        Open(0, plain.sampling),
        Open(1, careful.sampling, history=(1, 2), prompt=2),
    )


def test_snapshot() -> None:
    driven = Driven(request("a", range(9), 3), request("b", [7], 3), max_sequences=1)
    assert not driven.scheduler.is_idle
    driven.send()
    shot = driven.scheduler.snapshot()
    assert (shot.running, shot.waiting, shot.in_flight) == (1, 1, 1)
    assert (shot.kv_used, shot.kv_kept, shot.kv_total) == (12, 0, 256)
    driven.finish()
    shot = driven.scheduler.snapshot()
    assert driven.scheduler.is_idle
    assert (shot.kv_used, shot.kv_kept) == (0, 12)  # `b` never filled a block
    assert (shot.prompt_tokens, shot.cached_tokens, shot.completion_tokens, shot.rows) == (10, 0, 6, 14)


# Requests that can't be


@pytest.mark.parametrize(
    ("wanted", "field", "numbers"),
    [
        (request(prompt=[]), "prompt", []),
        (request(prompt=range(128)), "prompt", ["128 tokens", "context is 128"]),
        (request(max_tokens=0), "max_tokens", ["0"]),
    ],
)
def test_impossible_requests_are_refused(wanted: Request, field: str, numbers: list[str]) -> None:
    it = scheduler()
    with pytest.raises(RequestError) as caught:
        it.add(wanted, 0.0)
    assert caught.value.where == field
    assert all(number in str(caught.value) for number in numbers)
    assert it.is_idle


def test_a_prompt_that_leaves_room_for_one_token_is_answered_with_one() -> None:
    driven = Driven(request("a", range(127), 9))
    run(driven.scheduler, driven.chain, driven.answers)
    assert driven.answers.ended["a"].reason == "length"
    assert driven.answers.of("a") == reference(driven.requests[0], 1, context=128)


def test_a_prompt_larger_than_the_cache_is_refused_with_both_numbers() -> None:
    it = scheduler(kv_tokens=18)
    it.add(request("fits", range(16), 1), 0.0)
    with pytest.raises(CapacityError, match=r"17 tokens.*16"):
        it.add(request("b", range(17), 1), 0.0)


def test_an_id_in_use_is_refused() -> None:
    it = scheduler()
    it.add(request("a"), 0.0)
    with pytest.raises(RequestError, match="'a'"):
        it.add(request("a"), 0.0)


@pytest.mark.parametrize("wrong", [{"kv_tokens": 3}, {"stages": 0}, {"token_budget": 0}])
def test_impossible_configurations_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        scheduler(**wrong)
    assert caught.value.where in wrong


# How answers end


def test_a_stop_token_ends_the_answer_and_is_counted_but_not_in_it() -> None:
    free = request("a", [1, 2], 10)
    text = reference(free, 1)
    driven = Driven(replace(free, stop_tokens=frozenset({text[3]})))
    run(driven.scheduler, driven.chain, driven.answers)
    assert driven.answers.of("a") == text[:3]
    end = driven.answers.ended["a"]
    assert isinstance(end, Finished) and end.reason == "stop"
    assert (end.usage.prompt, end.usage.cached, end.usage.completion) == (2, 0, 4)


def test_a_stop_token_at_the_last_place_is_a_stop() -> None:
    free = request("a", [1, 2], 4)
    driven = Driven(replace(free, stop_tokens=frozenset({reference(free, 1)[3]})))
    run(driven.scheduler, driven.chain, driven.answers)
    assert driven.answers.ended["a"].reason == "stop"


def test_one_that_outgrows_the_cache_alone_fails_with_both_numbers() -> None:
    driven = Driven(request("a", [1, 2, 3], 100), kv_tokens=12)
    run(driven.scheduler, driven.chain, driven.answers)
    end = driven.answers.ended["a"]
    assert isinstance(end, Failed) and isinstance(end.error, CapacityError)
    assert "13 tokens" in str(end.error) and "12" in str(end.error)
    assert len(driven.answers.of("a")) == end.usage.completion == 10
    assert driven.scheduler.snapshot().kv_used == 0


# Cancel


def test_cancel_an_unknown_one() -> None:
    assert scheduler().cancel("nobody", 0.0) == []


def test_cancel_while_waiting() -> None:
    driven = Driven(request("a", [1], 4), request("b", [2], 4), max_sequences=1)
    driven.send()
    driven.cancel("b")
    assert driven.answers.ended["b"].reason == "cancelled"
    driven.finish()
    assert not any(op.sequence > 0 for step in driven.chain.log for op in step.operations if isinstance(op, Open))


def test_cancel_before_anything_was_sent() -> None:
    driven = Driven(request("a"))
    driven.cancel("a")
    assert driven.scheduler.is_idle
    assert driven.scheduler.next_step(0.0) is None


def test_cancel_while_prompt_chunks_are_in_flight() -> None:
    driven = Driven(request("a", range(20), 4), token_budget=8, stages=2)
    driven.send()
    driven.send()
    driven.cancel("a")
    driven.deliver()
    freeing = driven.send()
    assert (freeing.operations, freeing.rows, len(freeing.tokens)) == ((Free(0),), (), 0)
    driven.finish()
    assert driven.answers.of("a") == []
    assert all(stage.table.free_blocks == stage.table.capacity for stage in driven.chain.stages)


def test_cancel_while_a_decode_row_is_in_flight_frees_within_a_step() -> None:
    driven = Driven(request("a", [1], 9), request("b", [2], 9))
    driven.send()
    driven.deliver()
    driven.send()
    driven.cancel("a")
    driven.deliver()
    step = driven.send()
    assert step.operations == (Free(0),)
    assert [rows.sequence for rows in step.rows] == [1]
    driven.finish()
    assert len(driven.answers.of("a")) == 1


def test_cancel_after_the_end_gives_nothing() -> None:
    driven = Driven(request("a", [1], 1))
    driven.send()
    driven.deliver()
    assert driven.answers.ended["a"].reason == "length"
    assert driven.scheduler.cancel("a", 0.0) == []


def test_a_result_that_would_have_ended_a_cancelled_one_gives_nothing() -> None:
    driven = Driven(request("a", [1], 1))
    driven.send()
    driven.cancel("a")
    driven.deliver()
    assert driven.answers.ended["a"].reason == "cancelled"
    assert driven.answers.of("a") == []


def test_an_id_is_free_again_after_the_end_and_sequences_are_new() -> None:
    driven = Driven(request("a", [1], 1))
    driven.send()
    driven.cancel("a")
    driven.scheduler.add(request("a", [1], 1), 0.0)
    driven.deliver()
    assert driven.send().operations == (Free(0), Open(1, Sampling(temperature=0.0)))


# Too little room


def test_the_youngest_makes_room_and_both_texts_are_right() -> None:
    driven = two_in_a_small_cache()
    driven.finish()
    assert driven.scheduler.snapshot().preemptions > 0


def test_a_token_in_flight_of_a_preempted_one_is_kept() -> None:
    driven = two_in_a_small_cache()
    assert Free(1) in driven.until_preempted().operations
    before = len(driven.answers.of("young"))
    assert [rows.sequence for rows in driven.chain.sent[0].rows] == [1]
    driven.deliver()
    assert len(driven.answers.of("young")) == before + 1
    driven.finish()


def test_a_preempted_one_waits_for_its_token_before_it_comes_back() -> None:
    driven = two_in_a_small_cache()
    driven.until_preempted()
    driven.cancel("old")  # now there is room for it
    assert driven.scheduler.next_step(0.0) is None  # two are in flight
    driven.deliver()
    known = 1 + len(driven.answers.of("young"))
    assert [(rows.sequence, rows.past, rows.count) for rows in driven.send().rows] == [(2, 0, known)]
    driven.finish()


def test_a_preempted_one_in_flight_is_not_let_in_beside_its_own_row() -> None:
    driven = Driven(*two_in_a_small_cache().requests, stages=3, kv_tokens=16)
    driven.until_preempted()
    driven.cancel("old")
    assert driven.send().rows == ()
    driven.deliver()
    driven.finish()


def test_a_preempted_one_can_end_with_the_token_in_flight() -> None:
    probe = two_in_a_small_cache()
    probe.until_preempted()
    old, young = probe.requests
    driven = Driven(old, replace(young, max_tokens=len(probe.answers.of("young")) + 1), stages=2, kv_tokens=16)
    driven.until_preempted()
    driven.deliver()
    assert driven.answers.ended["young"].reason == "length"
    assert driven.scheduler.snapshot().preempted == 0
    driven.finish()


@pytest.mark.parametrize("is_in_flight", [True, False])
def test_cancel_a_preempted_one(is_in_flight: bool) -> None:
    driven = two_in_a_small_cache()
    driven.until_preempted()
    if not is_in_flight:
        driven.deliver()
    driven.cancel("young")
    driven.finish()
    assert driven.answers.ended["young"].reason == "cancelled"
    assert sum(isinstance(op, Open) for step in driven.chain.log for op in step.operations) == 2


def test_a_replay_tells_the_tail_prompt_and_answer() -> None:
    driven = two_in_a_small_cache()
    young = replace(driven.requests[1], sampling=Sampling(repetition_penalty=1.1))
    driven = Driven(driven.requests[0], young, stages=2, kv_tokens=16)
    driven.finish()
    opens = [op for step in driven.chain.log for op in step.operations if isinstance(op, Open) and op.history]
    assert len(opens) > 1
    text = young.prompt + tuple(reference(young, 2))
    assert all(op.prompt == 1 and op.history == text[: len(op.history)] for op in opens)
    assert len(opens[-1].history) > 1


def test_preempted_ones_come_back_before_new_ones() -> None:
    driven = two_in_a_small_cache()
    driven.until_preempted()
    driven.scheduler.add(request("new", [9], 1, priority=99), 0.0)
    driven.finish()
    replay = next(step for step in driven.chain.log if any(rows.sequence == 2 for rows in step.rows))
    assert replay.tokens[0] == 5


def test_a_new_one_leaves_a_block_for_each_that_runs() -> None:
    driven = Driven(request("a", range(8), 4), request("b", range(20, 28), 1), kv_tokens=16)
    assert [rows.sequence for rows in driven.send().rows] == [0]
    driven.finish()
    assert driven.scheduler.snapshot().preemptions == 0


# Shared prefixes


def test_a_second_turn_starts_from_the_first() -> None:
    first = request("first", range(10), 6)
    driven = Driven(first)
    driven.finish()
    second = request("second", [*first.prompt, *reference(first, 1), 50, 51], 4)
    driven.scheduler.add(second, 0.0)
    step = driven.send()
    assert step.operations == (Fork(0, 1, 12), Open(1, second.sampling))  # of the 15 that are cached
    assert [(rows.past, rows.count) for rows in step.rows] == [(12, 6)]
    run(driven.scheduler, driven.chain, driven.answers)
    assert driven.answers.of("second") == reference(second, 1)
    assert driven.answers.ended["second"].usage.cached == 12


def test_at_least_one_row_of_a_known_prompt_is_run() -> None:
    driven = Driven(request("a", range(8), 1))
    driven.finish()
    driven.scheduler.add(request("b", range(8), 1), 0.0)
    assert [(rows.past, rows.count) for rows in driven.send().rows] == [(4, 4)]


def test_rows_of_the_same_step_can_not_be_forked_but_those_of_the_step_before_can() -> None:
    same = [request(name, range(12), 3) for name in "abc"]
    driven = Driven(*same[:2], stages=2)
    assert not any(isinstance(op, Fork) for op in driven.send().operations)
    driven.scheduler.add(same[2], 0.0)
    assert driven.send().operations[0] == Fork(0, 2, 8)  # before a result has come
    driven.requests = tuple(same)
    driven.finish()


def test_a_source_that_makes_room_for_its_own_fork_goes_after_it() -> None:
    driven = Driven(request("a", range(12), 1), kv_tokens=16)
    driven.finish()
    wanted = request("b", [*range(4), *range(50, 60)], 1)
    driven.requests = (wanted,)
    driven.scheduler.add(wanted, 0.0)
    assert driven.send().operations == (Fork(0, 1, 4), Free(0), Open(1, wanted.sampling))
    driven.finish()


def test_a_source_that_was_evicted_is_not_found() -> None:
    driven = Driven(request("a", range(12), 1), kv_tokens=16)
    driven.finish()
    driven.scheduler.add(request("large", range(40, 56), 1), 0.0)
    driven.scheduler.add(request("again", range(12), 1), 0.0)
    assert driven.send().operations[0] == Free(0)
    driven.finish()
    assert not any(isinstance(op, Fork) for step in driven.chain.log for op in step.operations)


def test_a_source_may_be_cancelled_after_the_fork() -> None:
    driven = Driven(request("a", range(9), 5), stages=2)
    driven.send()
    fork = request("b", range(9), 5)
    driven.requests = (fork,)
    driven.scheduler.add(fork, 0.0)
    assert driven.send().operations[0] == Fork(0, 1, 8)
    driven.cancel("a")
    driven.finish()


def test_without_a_prefix_cache_nothing_stays() -> None:
    driven = Driven(request("a", range(9), 3), prefix_cache=False)
    driven.finish()
    driven.scheduler.add(request("b", range(9), 3), 0.0)
    driven.finish()
    assert driven.answers.ended["b"].usage.cached == 0
    assert driven.chain.stages[0].table.free_blocks == driven.chain.stages[0].table.capacity


# Stages that fail


def test_the_requests_of_a_failed_step_fail_and_the_others_go_on() -> None:
    driven = Driven(request("a", range(10), 4), request("b", [2], 4), stages=2, token_budget=10)
    assert [rows.sequence for rows in driven.send().rows] == [0]
    assert [rows.sequence for rows in driven.send().rows] == [1]
    driven.deliver(fail=True)
    end = driven.answers.ended["a"]
    assert isinstance(end, Failed) and isinstance(end.error, StageError)
    assert "out of order" in str(end.error) and "request a" in str(end.error)
    assert driven.send().operations == (Free(0),)
    driven.finish()
    assert driven.answers.ended["b"].reason == "length"


def test_a_preempted_one_survives_the_failure_of_its_last_step() -> None:
    driven = two_in_a_small_cache()
    driven.until_preempted()
    driven.deliver(fail=True)
    driven.finish()
    assert driven.answers.ended["young"].reason == "length"


@pytest.mark.parametrize("shift", [None, 1])
def test_a_token_that_is_missing_or_of_another_position_is_an_error(shift: int | None) -> None:
    driven = Driven(request("a", [1], 4))
    driven.send()
    result = driven.chain.deliver()
    tokens = () if shift is None else (replace(result.tokens[0], position=result.tokens[0].position + shift),)
    events = driven.scheduler.complete(replace(result, tokens=tokens), 0.0)
    assert len(events) == 1 and isinstance(events[0], Failed) and isinstance(events[0].error, StageError)


def test_results_of_unknown_steps_and_second_results_give_nothing() -> None:
    driven = Driven(request("a", [1], 4))
    driven.send()
    result = driven.deliver()
    assert driven.scheduler.complete(result, 0.0) == []
    assert driven.scheduler.complete(StepResult(77, ()), 0.0) == []
    driven.finish()


def test_when_the_chain_is_gone_every_request_fails_and_a_new_chain_can_begin() -> None:
    error = StageError("stage 1 has ended")
    driven = Driven(*(request(f"r{i}", [i], 9) for i in range(4)), stages=2, max_sequences=3)
    driven.send()
    driven.deliver()
    driven.send()
    events = driven.scheduler.fail_all(error, 0.0)
    assert {event.request for event in events} == {"r0", "r1", "r2", "r3"}
    assert all(isinstance(event, Failed) and event.error is error for event in events)
    assert driven.scheduler.is_idle
    driven.chain = Chain.of(driven.scheduler)
    again = request("again", [1], 9)
    driven.scheduler.add(again, 0.0)
    events = []
    while step := driven.scheduler.next_step(0.0):
        driven.chain.send(step)
        events += driven.scheduler.complete(driven.chain.deliver(), 0.0)
    assert [event.token.token for event in events if isinstance(event, TokenEvent)] == reference(again, 2)
