from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_chain import Driven, reference, request, run, scheduler

from pipeline.messages import Finished, Open, Request, Sampling
from shards.errors import CapacityError, ConfigurationError, OverloadedError, RequestError

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
    driven = Driven(request("a", range(9), 3, priority=1), request("b", [7], 3), max_sequences=1)
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


def test_when_too_many_wait_the_next_is_told_both_numbers_and_when_to_come_again() -> None:
    driven = Driven(request("runs", max_tokens=100), max_sequences=1, max_waiting=2)
    driven.send()
    for name, now in (("a", 0.0), ("b", 1.0)):
        driven.scheduler.add(request(name, max_tokens=1), now)
    with pytest.raises(OverloadedError, match=r"2 requests wait and at most 2 may") as caught:
        driven.scheduler.add(request("c"), 1.0)
    assert caught.value.retry_seconds == 1.0  # none has ended yet, so nobody knows
    assert "c" not in {told.id for told in driven.scheduler.requests(1.0)}
    for now in (2.0, 8.0):  # one that gives up makes a place too
        driven.scheduler.cancel("a", now)
        driven.scheduler.add(request("a", max_tokens=1), now)
    with pytest.raises(OverloadedError) as caught:
        driven.scheduler.add(request("c"), 20.0)
    assert caught.value.retry_seconds == pytest.approx((20.0 - 2.0) / 2)
    with pytest.raises(OverloadedError) as caught:
        driven.scheduler.add(request("c"), 1e6)
    assert caught.value.retry_seconds == 60.0
    run(driven.scheduler, driven.chain, driven.answers)
    driven.scheduler.add(request("c"), 1e6)


def test_what_runs_does_not_count_as_waiting() -> None:
    driven = Driven(max_waiting=1, max_sequences=8)
    for i in range(8):
        driven.scheduler.add(request(f"r{i}", [i], 20), 0.0)
        driven.send()
        driven.deliver()
    assert driven.scheduler.snapshot().running == 8
    driven.scheduler.add(request("waits"), 0.0)
    with pytest.raises(OverloadedError):
        driven.scheduler.add(request("more"), 0.0)


@pytest.mark.parametrize(
    "wrong",
    [{"kv_tokens": 3}, {"stages": 0}, {"token_budget": 0}, {"max_waiting": 0}, {"target_tbt_ms": 0.0}],
)
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


def test_an_answer_ends_where_the_cache_does_as_where_the_context_does() -> None:
    driven = Driven(request("a", [1, 2, 3], 100), kv_tokens=12)
    run(driven.scheduler, driven.chain, driven.answers)
    end = driven.answers.ended["a"]
    assert isinstance(end, Finished) and end.reason == "length"
    assert driven.answers.of("a") == reference(driven.requests[0], 1, context=13)  # the last token is not in the cache
    assert end.usage.completion == 10
    assert driven.scheduler.snapshot().kv_used == 0
