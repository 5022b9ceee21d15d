"""Batch requests give way to interactive ones, and whoever has to stop goes on from what is still there."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from simulated_chain import Driven, TimedChain, reference, request, run, scheduler

from pipeline.admission import BATCH_PATIENCE_SECONDS
from pipeline.messages import Failed, Fork, Free, Request, SequenceRows, Step
from shards.errors import StageError


def batch(name: str, prompt: range | list[int], max_tokens: int) -> Request:
    return request(name, prompt, max_tokens, service="batch")


def come(driven: Driven, *requests: Request) -> None:
    driven.requests = (*driven.requests, *requests)
    for wanted in requests:
        driven.scheduler.add(wanted, 0.0)


def states(driven: Driven) -> dict[str, str]:
    return {told.id: told.state for told in driven.scheduler.requests(0.0)}


def go_on(driven: Driven, steps: int) -> None:
    for _ in range(steps):
        driven.send()
        driven.deliver()


def rows_of(step: Step) -> list[tuple[int, int]]:
    return [(rows.past, rows.count) for rows in step.rows]


# Giving way


def test_a_batch_request_gives_its_slot_to_an_interactive_one() -> None:
    driven = Driven(batch("b", range(9), 20), max_sequences=1)
    go_on(driven, 4)
    come(driven, request("i", [50, 51], 2))
    assert rows_of(driven.send()) == [(0, 2)]
    assert states(driven) == {"b": "preempted", "i": "prefill"}
    shot = driven.scheduler.snapshot()
    assert (shot.paused, shot.preempted, shot.preemptions, shot.waiting, shot.waiting_batch) == (1, 1, 1, 0, 0)
    driven.finish()


def test_it_goes_on_from_what_it_had() -> None:
    driven = Driven(batch("b", range(9), 20), max_sequences=1)
    go_on(driven, 4)  # 12 of its tokens are cached, whole blocks of 4
    come(driven, request("i", [50, 51], 1))
    go_on(driven, 1)
    assert rows_of(driven.send()) == [(12, 1)]
    assert driven.scheduler.snapshot().evicted_tokens == 0
    assert driven.scheduler.snapshot().prompt_tokens == 11  # it was admitted once
    driven.finish()


def test_without_a_prefix_cache_it_is_computed_again() -> None:
    driven = Driven(batch("b", range(9), 20), max_sequences=1, prefix_cache=False)
    go_on(driven, 4)
    come(driven, request("i", [50, 51], 1))
    go_on(driven, 1)
    assert rows_of(driven.send()) == [(0, 13)]
    driven.finish()


def test_room_is_taken_from_its_end_and_no_more_than_is_needed() -> None:
    driven = Driven(batch("b", range(30), 8), kv_tokens=48)
    go_on(driven, 2)  # it holds 8 of 12 blocks
    come(driven, request("i", range(50, 67), 1))  # takes 5
    step = driven.send()
    assert rows_of(step) == [(0, 17)]
    assert [op for op in step.operations if isinstance(op, Fork | Free)] == [Fork(0, 2, 28), Free(0)]
    assert driven.scheduler.snapshot().evicted_tokens == 4
    driven.deliver()
    assert rows_of(driven.send()) == [(28, 4)]
    driven.finish()


def test_rows_on_their_way_are_not_lost() -> None:
    driven = Driven(batch("b", range(32), 8), stages=2, token_budget=8, max_sequences=1)
    driven.send()
    driven.send()
    come(driven, request("i", [50], 1))
    driven.deliver()
    driven.send()  # the batch request stops, with a chunk still on its way
    assert states(driven)["b"] == "preempted"
    driven.deliver()
    driven.deliver()
    assert rows_of(driven.send()) == [(16, 8)]
    driven.finish()


def test_the_youngest_batch_request_gives_way_and_no_more_than_it_takes() -> None:
    driven = Driven(*(batch(f"b{i}", [i, 1, 2], 20) for i in range(3)), max_sequences=3)
    go_on(driven, 2)
    come(driven, request("i", [50], 5))
    driven.send()
    assert states(driven) == {"b0": "decode", "b1": "decode", "b2": "preempted", "i": "prefill"}
    come(driven, request("j", [51], 5))
    driven.deliver()
    driven.send()
    assert states(driven)["b1"] == "preempted"
    driven.finish()


def test_nobody_gives_way_for_one_that_would_not_fit_all_the_same() -> None:
    driven = Driven(request("i", range(24), 12), batch("b", [50], 12), kv_tokens=48)
    go_on(driven, 2)
    come(driven, request("large", range(60, 90), 4))
    go_on(driven, 1)
    assert states(driven) == {"i": "decode", "b": "decode", "large": "waiting"}
    driven.finish()


def test_interactive_prompts_go_first_in_a_step_and_in_the_queue() -> None:
    driven = Driven(batch("b", range(40), 1), token_budget=16)
    go_on(driven, 1)
    come(driven, batch("b2", [90], 1), request("i", range(50, 80), 1))
    step = driven.send()
    assert rows_of(step) == [(0, 16)]
    driven.deliver()
    assert rows_of(driven.send()) == [(16, 14), (0, 1), (16, 1)]  # then the shorter batch request
    driven.finish()


def test_a_batch_request_makes_room_before_a_younger_interactive_one() -> None:
    driven = Driven(batch("b", [1], 14), kv_tokens=32, stages=1)
    go_on(driven, 1)
    come(driven, request("i", range(20, 26), 12), request("j", range(40, 46), 12))
    while "preempted" not in states(driven).values():
        go_on(driven, 1)
    assert states(driven)["b"] == "preempted"
    driven.finish()


def test_it_gives_way_to_an_interactive_one_that_had_to_stop() -> None:
    driven = Driven(request("old", range(4), 12, priority=1), request("young", range(20, 24), 12), kv_tokens=24)
    while "preempted" not in states(driven).values():
        go_on(driven, 1)
    come(driven, batch("b", [50], 4))
    driven.send()
    assert states(driven)["b"] == "waiting"
    driven.finish()
    order = list(driven.answers.ended)
    assert order.index("young") < order.index("b")


# Nobody waits for ever


def test_a_batch_request_that_has_waited_long_goes_first_and_gives_way_no_more() -> None:
    chain = TimedChain(scheduler(max_sequences=1, kv_tokens=2048), lambda rows: 10.0)
    chain.arrive(0.0, batch("b", range(9), 40))
    for i in range(1500):  # always somebody waits
        chain.arrive(50.0 + 45.0 * i, request(f"i{i}", [50], 5))
    chain.run()
    assert chain.answers.of("b") == reference(batch("b", range(9), 40), 1)
    came = chain.tokens_at["b"]
    assert came[3] < 100 and 1e3 * BATCH_PATIENCE_SECONDS < came[-1] < 1.1e3 * BATCH_PATIENCE_SECONDS
    assert max(b - a for a, b in pairwise(came[6:])) < 20.0


def test_those_that_stopped_go_first_among_batch_requests_oldest_first() -> None:
    driven = Driven(batch("b0", [1], 9), batch("b1", [2], 9), max_sequences=2)
    go_on(driven, 2)
    come(driven, batch("new", [3], 2), request("i", [50], 2), request("j", [51], 2))
    go_on(driven, 2)  # one gives way in each step
    assert states(driven) == {"b0": "preempted", "b1": "preempted", "new": "waiting", "j": "decode"}
    go_on(driven, 2)
    assert states(driven) == {"b0": "decode", "b1": "decode", "new": "waiting"}
    driven.finish()


@pytest.mark.parametrize("services", [("interactive", "interactive"), ("batch", "batch"), ("batch", "interactive")])
def test_two_that_do_not_fit_together_do_not_stop_one_another_for_ever(services: tuple[str, str]) -> None:
    requests = [
        request(name, [n], 15, service=service) for n, (name, service) in enumerate(zip("ab", services, strict=True))
    ]
    driven = Driven(*requests, kv_tokens=20)
    run(driven.scheduler, driven.chain, driven.answers, most=60)
    assert all(driven.answers.of(wanted.id) == reference(wanted, 1) for wanted in requests)
    assert 1 <= driven.scheduler.snapshot().preemptions <= 4


# When something else happens to it meanwhile


def test_cancel_a_paused_one() -> None:
    driven = Driven(batch("b", range(9), 20), max_sequences=1)
    go_on(driven, 2)
    come(driven, request("i", [50, 51], 3))
    driven.send()
    driven.cancel("b")
    driven.finish()
    assert driven.answers.ended["b"].reason == "cancelled"
    assert driven.scheduler.snapshot().paused == 0


def test_when_the_chain_is_gone_a_paused_one_fails_too() -> None:
    driven = Driven(batch("b", range(9), 20), max_sequences=1)
    go_on(driven, 2)
    come(driven, request("i", [50, 51], 3))
    driven.send()
    events = driven.scheduler.fail_all(StageError("it has ended"), 0.0)
    assert {event.request for event in events if isinstance(event, Failed)} == {"b", "i"}
    assert driven.scheduler.is_idle and driven.scheduler.snapshot().paused == 0


def test_a_paused_one_survives_the_failure_of_its_last_step() -> None:
    driven = Driven(batch("b", range(9), 20), request("x", [90], 9), stages=2, max_sequences=2)
    driven.send()
    driven.deliver()
    driven.send()
    last = driven.send()
    driven.deliver()
    come(driven, request("i", [50], 3))
    driven.send()
    assert rows_of(last) == [(9, 1)] and states(driven)["b"] == "preempted"
    driven.deliver(fail=True)
    driven.finish()
    assert driven.answers.of("b") == reference(driven.requests[0], 2)


def test_hits_and_lookups_are_counted_once_a_request() -> None:
    driven = Driven(request("a", range(12), 2), max_sequences=1)
    driven.finish()
    come(driven, batch("b", [*range(12), 60], 9))
    go_on(driven, 2)
    come(driven, request("i", [70], 1), replace(driven.requests[0], id="c"))
    driven.finish()
    shot = driven.scheduler.snapshot()
    assert (shot.lookups, shot.hits, shot.cached_tokens, shot.preemptions) == (4, 2, 12 + 8, 1)


def test_what_is_sent_of_it_is_never_sent_twice_in_one_step() -> None:
    driven = Driven(*(batch(f"b{i}", [i, 1], 12) for i in range(3)), stages=2, max_sequences=3, runs_ahead=True)
    for i in range(6):
        come(driven, request(f"i{i}", [50 + i], 2))
        for _ in range(3):
            if (step := driven.scheduler.next_step(0.0)) is not None:
                driven.chain.send(step)
                named = [rows.sequence for rows in step.rows if isinstance(rows, SequenceRows)]
                assert len(named) == len(set(named))
        if driven.chain.sent:
            driven.deliver()
    driven.finish()
