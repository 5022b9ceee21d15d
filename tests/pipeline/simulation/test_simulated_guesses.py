"""Modelled drafters: what comes of guesses, by hand and in general."""

from __future__ import annotations

from typing import Any

import pytest
from small_systems import TEN_MS, gap, load, system

from pipeline.messages import Sampling
from pipeline.simulation.measures import Measures
from pipeline.simulation.modelled_drafter import DrafterModel, ModelledDrafter
from pipeline.simulation.report import simulate
from pipeline.simulation.system import System
from pipeline.speculation.drafter import DraftText
from shards.errors import ConfigurationError

FLAT = {"step_ms": [(1, 6), (8, 7), (32, 9)]}


def far(draft: dict[str, Any] | None = None, **more: Any) -> System:
    """Two stages, 50 ms apart, the head beside the first."""
    return system(FLAT, FLAT, draft=draft, link={"latency_ms": 50}, local_head=True, **more)


def rate(simulated: System, users: int = 1, new_tokens: int = 600) -> float:
    outcome = simulate(simulated, load(users=users, new_tokens=new_tokens))
    return Measures.of(list(outcome.requests.values())).phase


def test_guesses_that_are_always_right_and_free_come_in_full_steps() -> None:
    """All 32 guesses and the row itself are right: 33 tokens each 112 ms and a bit."""
    always = far({"acceptance": 1.0}, scheduler={"speculation": {"draft_tokens": 32, "asynchronous": False}})
    assert rate(always) == pytest.approx(33 / 0.118, rel=0.1)


def test_guesses_that_are_never_right_cost_nothing_but_trials() -> None:
    for users in (1, 4):
        never = far({"acceptance": 0.0, "guess_ms": 4.0})
        assert rate(never, users) > 0.97 * rate(far(), users)


@pytest.mark.parametrize("users", [1, 4])
@pytest.mark.parametrize("acceptance", [0.3, 0.68, 0.9])
def test_over_long_links_guesses_pay(users: int, acceptance: float) -> None:
    tokens = 1 / (1 - acceptance)  # at most, for each round
    gained = rate(far({"acceptance": acceptance, "guess_ms": 4.0, "first_ms": 1.0}), users) / rate(far(), users)
    assert 0.97 <= gained <= 1.02 * tokens
    if acceptance > 0.5:
        assert gained > 0.5 * tokens


def test_what_follows_its_row_wins_over_what_is_waited_for() -> None:
    draft = {"acceptance": 0.7, "guess_ms": 4.0, "first_ms": 1.0}
    waits = far(draft, scheduler={"speculation": {"asynchronous": False}})
    assert rate(far(draft)) > 1.1 * rate(waits)


def test_without_a_drafter_nothing_has_changed() -> None:
    assert gap(system(TEN_MS, TEN_MS), load(users=1)) == 20


def test_a_policy_without_guesses_refuses_a_drafter() -> None:
    for policy in ("groups", "hub"):
        with pytest.raises(ConfigurationError, match="guesses"):
            far({"acceptance": 0.5}, policy=policy)


def test_a_modelled_drafter_makes_one_guess_after_another() -> None:
    drafter = ModelledDrafter(DrafterModel(acceptance=1.0, guess_ms=4.0, first_ms=1.0), seed=0)
    text = DraftText("a", "", [0, 2, 4], (), Sampling())
    assert drafter.guess(text, 2) is None and drafter.due == 9.0
    drafter.now = 9.0
    assert drafter.guess(text, 2) == [6, 8]
    longer = DraftText("a", "", [0, 2, 4, 6], (8,), Sampling())
    drafter.due = None
    assert drafter.guess(longer, 1) is None and drafter.due == 13.0  # it goes on where it is
    other = DraftText("a", "", [0, 2, 4, 7], (), Sampling())
    drafter.now, drafter.due = 10.0, None
    assert drafter.guess(other, 1) is None and drafter.due == 13.0 + 1.0 + 4.0  # what it is at is finished first
