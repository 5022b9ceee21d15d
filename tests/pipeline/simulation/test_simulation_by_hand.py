"""Cases whose outcome can be worked out on paper."""

from __future__ import annotations

import pytest
from small_systems import TEN_MS, gap, gaps_of, load, run_groups, system

from pipeline.simulation.link_model import LinkModel
from pipeline.simulation.measures import Measures, stage_use, steps_by_rows
from pipeline.simulation.report import simulate


def test_one_stage_gives_the_rows_of_its_steps() -> None:
    outcome = simulate(system(), load(users=4, new_tokens=32))
    assert Measures.of(list(outcome.requests.values())).decode == pytest.approx(4 / 0.030)


def test_two_equal_stages_serve_two_users_as_fast_as_one() -> None:
    two = system(TEN_MS, TEN_MS)
    assert gap(two, load(users=1)) == 20
    assert gap(two, load(users=2)) == 20


def test_full_stages_have_no_bubbles_and_those_of_one_user_have() -> None:
    full = stage_use(run_groups([1, 1], [TEN_MS, TEN_MS]))
    lonely = stage_use(run_groups([1], [TEN_MS, TEN_MS]))
    assert [use.busy for use in full] == pytest.approx([1, 1], abs=0.05)
    assert [use.bubble for use in full] == pytest.approx([0, 0], abs=0.05)
    assert [(use.busy, use.bubble) for use in lonely] == [pytest.approx((0.5, 0.5))] * 2


def test_a_ring_of_unequal_frames_goes_at_the_pace_of_the_largest() -> None:
    """A frame cannot overtake: nine rows in all could take 18 + 10 + 10 ms a round, and take three times 18."""
    outcome = run_groups([2, 1, 1], [TEN_MS] * 3)
    assert {value for of_one in gaps_of(outcome) for value in of_one} == {54}
    assert steps_by_rows(outcome) == {1: 32, 2: 16}


def test_a_ring_of_equal_frames_is_bound_by_the_slowest_stage() -> None:
    slow = {"step_ms": [(1, 25)]}
    assert {value for of_one in gaps_of(run_groups([1, 1, 1], [TEN_MS, slow, TEN_MS])) for value in of_one} == {75}


def test_latency_is_paid_on_every_link_and_overlaps() -> None:
    link = LinkModel(latency_ms=5)
    for groups in ([1], [1, 1]):
        outcome = run_groups(groups, [TEN_MS, TEN_MS], link)
        assert {value for of_one in gaps_of(outcome) for value in of_one} == {20 + 3 * 5}


def test_frames_take_the_rate_of_a_link_one_after_another() -> None:
    slow = LinkModel(mbit=1, bytes_per_row=5000, bytes_per_token=0, bytes_per_answer=0, latency_ms=3)  # 40 ms a row
    stages = [{"step_ms": [(1, 1)]}] * 2
    assert {value for of_one in gaps_of(run_groups([1], stages, slow)) for value in of_one} == {40 + 2 + 3 * 3}
    assert {value for of_one in gaps_of(run_groups([1] * 4, stages, slow)) for value in of_one} == {4 * 40}


def test_a_hub_pays_every_round_trip() -> None:
    link = LinkModel(latency_ms=5, mbit=1, bytes_per_row=1000, bytes_per_token=125, bytes_per_answer=250)
    outcome = run_groups([1], [TEN_MS] * 3, link, "hub")
    calls = [1 + 10 + 8, 8 + 10 + 8, 8 + 10 + 2]
    assert {value for of_one in gaps_of(outcome) for value in of_one} == {sum(calls) + 3 * 2 * 5}


def test_a_hub_has_one_call_on_a_link() -> None:
    """Three streams over three stages: no stage computes while its call or answer is on the way."""
    outcome = run_groups([1, 1, 1], [TEN_MS] * 3, LinkModel(latency_ms=5), "hub")
    assert {value for of_one in gaps_of(outcome) for value in of_one} == {3 * 20}
    assert max(use.busy for use in stage_use(outcome)) < 0.51


def test_running_ahead_hides_the_head_and_the_way_to_it() -> None:
    asked, follows = load(), {"runs_ahead": False}
    assert gap(system(head_ms=7, scheduler=follows), asked) == 10 + 7
    assert gap(system(head_ms=7), asked) == 10
    far = {"link": {"latency_ms": 5}, "head_ms": 7}
    assert gap(system(TEN_MS, TEN_MS, scheduler=follows, **far), asked) == 2 * 10 + 3 * 5 + 7
    assert gap(system(TEN_MS, TEN_MS, **far), asked) == 2 * 10 + 2 * 5  # on to the tail, and its echo


def test_a_local_head_has_no_link_to_the_first_stage() -> None:
    link = {"latency_ms": 5}
    follows = {"runs_ahead": False}
    assert gap(system(TEN_MS, TEN_MS, scheduler=follows, link=link, local_head=True), load()) == 20 + 2 * 5
    assert gap(system(TEN_MS, TEN_MS, topology="hub", link=link, local_head=True), load()) == 20 + 2 * 5


def test_context_costs_time_for_every_row_and_cached_token() -> None:
    stage = {"step_ms": [(1, 10)], "ms_per_1k_context": 100}
    outcome = simulate(system(stage), load(prompt_tokens=100, new_tokens=3))
    (request,) = outcome.requests.values()
    prompt = 10 + 100 * (99 * 100 / 2) / 1000  # the nth row attends to those before it
    assert request.tokens == pytest.approx([prompt, prompt + 20, prompt + 20 + 20.1])


def test_a_shared_prefix_is_computed_once() -> None:
    stage = {"step_ms": [(1, 1), (101, 101)]}
    prompts = load(users=2, prompt_tokens=80, shared_prefix=64, interval_ms=1000, new_tokens=2)
    first, second = simulate(system(stage), prompts).requests.values()
    assert (first.cached, second.cached) == (0, 64)
    assert [request.tokens[0] - request.arrived for request in (first, second)] == pytest.approx([80, 16])
