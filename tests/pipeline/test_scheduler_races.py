from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_chain import Chain, Driven, reference, request, run, scheduler

from pipeline.messages import Failed, Fork, Free, Open, Sampling, StepResult, TokenEvent
from shards.errors import StageError


def two_in_a_small_cache() -> Driven:
    """Two stages, a step for each of two requests; `old` runs into the end of the cache and pushes `young` out."""
    return Driven(request("old", [1, 2, 3, 4], 11, priority=1), request("young", [5], 12), stages=2, kv_tokens=16)


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
    assert [(rows.past, rows.count) for rows in driven.send().rows] == [(4, known - 4)]  # a block was still there
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
    opened = [op.sequence for step in driven.chain.log for op in step.operations if isinstance(op, Open)]
    replay = next(step for step in driven.chain.log if any(rows.sequence == opened[2] for rows in step.rows))
    assert replay.tokens[0] == 5  # the whole of it: its room was needed


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


def test_rows_can_be_forked_once_they_are_done_on_every_stage() -> None:
    requests = [request(name, range(12), 3) for name in "abc"]
    driven = Driven(*requests, stages=2, token_budget=12)
    for _ in range(2):
        assert not any(isinstance(op, Fork) for op in driven.send().operations)
    driven.deliver()
    assert driven.send().operations[0] == Fork(0, 2, 8)  # the first is still running
    driven.finish()


def test_a_failed_step_takes_nobody_along_who_comes_later() -> None:
    driven = Driven(request("a", range(12), 3), stages=2, token_budget=8)
    driven.send()
    driven.scheduler.add(request("b", range(12), 3), 0.0)
    driven.send()
    driven.deliver(fail=True)
    driven.deliver()
    driven.requests = (request("c", range(12), 3),)
    driven.scheduler.add(driven.requests[0], 0.0)
    driven.finish()


def test_a_source_that_makes_room_for_its_own_fork_goes_after_it() -> None:
    driven = Driven(request("a", range(12), 1), kv_tokens=16)
    driven.finish()
    wanted = request("b", [*range(4), *range(50, 60)], 1)
    driven.requests = (wanted,)
    driven.scheduler.add(wanted, 0.0)
    # what is shared stays for others to find
    assert driven.send().operations == (Fork(0, 1, 4), Fork(0, 2, 4), Free(0), Open(1, wanted.sampling))
    driven.finish()


def test_a_source_that_was_evicted_is_not_found() -> None:
    driven = Driven(request("a", range(12), 1), kv_tokens=16)
    driven.finish()
    driven.scheduler.add(request("large", range(40, 56), 1, priority=1), 0.0)
    driven.scheduler.add(request("again", range(12), 1), 0.0)
    assert driven.send().operations[0] == Free(0)
    driven.finish()
    assert not any(isinstance(op, Fork) and op.source == 0 for step in driven.chain.log for op in step.operations)


def test_a_source_may_be_cancelled_after_the_fork() -> None:
    driven = Driven(request("a", range(9), 5), stages=2)
    driven.send()
    driven.deliver()
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
    driven = Driven(request("a", range(10), 4, priority=1), request("b", [2], 4), stages=2, token_budget=10)
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
