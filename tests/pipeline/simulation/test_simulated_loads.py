from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from small_systems import load

from pipeline.simulation.arrivals import Arrival, Arrivals
from pipeline.simulation.loads import Lengths, Load


def first(asked: Load) -> list[Arrival]:
    return Arrivals(asked).first()


def test_users_come_together_at_an_interval() -> None:
    assert [arrival.at for arrival in first(load(3, start_ms=5, interval_ms=15))] == [5, 20, 35]


def test_poisson_arrivals_have_the_rate_and_never_go_back() -> None:
    arrivals = first(load(4, arrivals="poisson", rate=100, count=2000))
    times = [arrival.at for arrival in arrivals]
    assert len(times) == 2000
    assert times == sorted(times)
    assert times[-1] == pytest.approx(2000 * 10, rel=0.1)
    assert [arrival.user for arrival in arrivals[:5]] == [0, 1, 2, 3, 0]


def test_a_closed_loop_asks_again_until_all_is_asked() -> None:
    arrivals = Arrivals(load(2, arrivals="closed", count=3))
    one, two = arrivals.first()
    third = arrivals.after(two.request.id, 70.0)
    assert third is not None
    assert (third.at, third.user, third.request.client) == (70.0, two.user, two.request.client)
    assert arrivals.after(one.request.id, 80.0) is None
    assert arrivals.after(third.request.id, 90.0) is None


def test_lengths_are_drawn_from_a_list_or_a_range_by_the_seed() -> None:
    def drawn(seed: int) -> list[tuple[int, int]]:
        asked = load(100, [5, 9], {"least": 2, "most": 4}, seed=seed)
        return [(len(arrival.request.prompt), arrival.request.max_tokens) for arrival in first(asked)]

    assert {prompt for prompt, _ in drawn(1)} == {5, 9}
    assert {new for _, new in drawn(1)} == {2, 3, 4}
    assert drawn(1) == drawn(1) != drawn(2)
    arrivals = Arrivals(load(100, [5, 9], {"least": 2, "most": 4}, seed=1))
    assert arrivals.tokens == sum(new for _, new in drawn(1))


def test_lengths_may_come_in_turn() -> None:
    asked = load(4, {"values": [5, 9, 2], "in_turn": True}, {"values": [3, 4], "in_turn": True})
    lengths = [(len(arrival.request.prompt), arrival.request.max_tokens) for arrival in first(asked)]
    assert lengths == [(5, 3), (9, 4), (2, 3), (5, 4)]


def test_a_trace_says_when_requests_come() -> None:
    arrivals = first(load(2, arrivals="trace", at_ms=[0, 2.5, 2.5], start_ms=100))
    assert [(arrival.at, arrival.user) for arrival in arrivals] == [(100, 0), (102.5, 1), (102.5, 0)]


def test_prompts_share_what_they_should_and_nothing_else() -> None:
    own = [arrival.request.prompt for arrival in first(load(3, 8, beside=[{"name": "b", "users": 1, **_LENGTHS}]))]
    assert len({prompt[0] for prompt in own}) == 4
    shared = [arrival.request.prompt for arrival in first(load(3, [6, 8], shared_prefix=4))]
    assert {prompt[:4] for prompt in shared} == {(1, 1, 1, 1)}
    assert len({prompt[4] for prompt in shared}) == 3


def test_users_are_clients_unless_one_is_named() -> None:
    late = {"name": "late", "users": 1, "client": "one", "service": "batch", "priority": 2, **_LENGTHS}
    requests = [arrival.request for arrival in first(load(2, beside=[late]))]
    assert [request.client for request in requests] == ["users 0", "users 1", "one"]
    assert [request.service for request in requests] == ["interactive", "interactive", "batch"]
    assert [request.priority for request in requests] == [0, 0, 2]
    assert len({request.id for request in requests}) == 3


_LENGTHS = {"prompt_tokens": 8, "new_tokens": 1}


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"users": 0}, "greater than or equal to 1"),
        ({"arrivals": "poisson"}, "rate goes with poisson arrivals, which need one"),
        ({"rate": 3}, "rate goes with poisson"),
        ({"arrivals": "poisson", "rate": 3, "interval_ms": 1}, "interval_ms does not go with poisson"),
        ({"count": 3}, "count does not go with arrivals together"),
        ({"arrivals": "trace"}, "at_ms goes with a trace of arrivals, which needs it"),
        ({"at_ms": [3]}, "at_ms goes with a trace"),
        ({"arrivals": "trace", "at_ms": [3, 2]}, "begin at 0 or later and never go back"),
        ({"arrivals": "trace", "at_ms": [-1]}, "begin at 0 or later"),
        ({"arrivals": "trace", "at_ms": [float("inf")]}, "begin at 0 or later"),
        ({"arrivals": "trace", "at_ms": [1], "count": 1}, "interval_ms and count do not go with a trace"),
        ({"users": 4, "arrivals": "closed", "count": 3}, "count is 3 for 4 users"),
        ({"prompt_tokens": [20, 9], "shared_prefix": 10}, "shared_prefix is 10, and prompts have from 9 tokens on"),
        ({"users": 100_000, "prompt_tokens": 2000}, "can have 201600000 tokens, and a simulation runs 100000000"),
        ({"beside": [{"users": 1, **_LENGTHS}]}, "need names of their own"),
        ({"prompt_tokens": 0}, "0 is less than 1"),
        ({"prompt_tokens": []}, "a number, a list of numbers, or"),
        ({"prompt_tokens": {"least": 5, "most": 4}}, "1 <= A <= B"),
        ({"prompt_tokens": 10**7}, "10000000 is more than 1000000"),
        ({"prompt_tokens": "many"}, "valid dictionary or instance"),
    ],
)
def test_impossible_loads_are_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        load(**fields)


def test_lengths_know_their_bounds() -> None:
    assert [Lengths.model_validate(form).smallest for form in (3, [7, 2], {"least": 4, "most": 9})] == [3, 2, 4]
    assert [Lengths.model_validate(form).largest for form in (3, [7, 2], {"least": 4, "most": 9})] == [3, 7, 9]
