"""What the scheduler tells of requests that have not ended."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_chain import Driven, TimedChain, request, scheduler

from pipeline.snapshots import RequestSnapshot


def told(driven: Driven, now: float = 0.0) -> dict[str, RequestSnapshot]:
    return {shot.id: shot for shot in driven.scheduler.requests(now)}


def test_a_request_from_its_coming_to_its_end() -> None:
    driven = Driven(replace(request("a", range(12), 3), client="ann"), token_budget=8)
    assert told(driven, 2.5)["a"] == RequestSnapshot("a", "ann", "waiting", 12, 0, 0, 0, 3, 2.5, None)
    driven.send()
    assert (told(driven)["a"].state, told(driven)["a"].done_tokens) == ("prefill", 0)
    driven.deliver()
    assert (told(driven)["a"].state, told(driven)["a"].done_tokens) == ("prefill", 8)
    driven.send()  # the prompt's last chunk is on its way, and with it the first token
    assert told(driven)["a"].state == "prefill"
    driven.deliver()
    shot = told(driven)["a"]
    assert (shot.state, shot.done_tokens, shot.completion_tokens) == ("decode", 12, 1)
    driven.send()
    driven.deliver()
    assert (told(driven)["a"].done_tokens, told(driven)["a"].completion_tokens) == (13, 2)
    driven.finish()
    assert told(driven) == {}


def test_one_that_was_preempted_begins_again() -> None:
    driven = Driven(*(request(name, range(8), 20) for name in "ab"), kv_tokens=32, prefix_cache=False)
    driven.until_preempted()
    shots = told(driven)
    assert [shots["a"].state, shots["b"].state] == ["decode", "preempted"]
    assert shots["b"].done_tokens == 0 < shots["b"].completion_tokens
    driven.finish()


def test_cached_tokens_are_done_from_the_start() -> None:
    driven = Driven(request("a", range(12), 1))
    driven.finish()
    driven.scheduler.add(request("b", range(12), 2), 0.0)
    driven.send()
    assert (told(driven)["b"].cached_tokens, told(driven)["b"].done_tokens) == (8, 8)


def test_the_rate_is_that_since_the_first_token() -> None:
    timed = TimedChain(scheduler(), lambda rows: 1.0)
    timed.arrive(0.0, request("a", range(4), 100))
    timed.arrive(20.0, request("b", range(4), 4))
    rates = []
    add = timed.scheduler.add

    def look(wanted: object, now: float) -> None:
        rates.extend(shot.tokens_per_second for shot in timed.scheduler.requests(now))
        add(wanted, now)  # type: ignore[arg-type]

    timed.scheduler.add = look  # type: ignore[method-assign]
    timed.run()
    assert rates == [pytest.approx(1000.0)]  # a token each millisecond
