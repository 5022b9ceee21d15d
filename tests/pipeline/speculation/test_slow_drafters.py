"""Guesses that take time: who waits for them, and what follows its row."""

from __future__ import annotations

import pytest
from speculation_parts import ALONE, FLAT, STEEP, Both, Echo, Silent, sequence, speculation, teach

from pipeline.sequence import Sequence
from pipeline.speculation.acceptance import Acceptance
from pipeline.speculation.drafter import MAX_GUESSES, MODEL
from pipeline.speculation.speculation import Speculation

# Drafters that take time


def test_a_drafter_that_is_at_work_is_waited_for() -> None:
    drafter = Echo(cost=0.1, ready=False)
    told, text = speculation(FLAT, drafter), sequence()
    assert not told.prepare(text, ALONE)
    drafter.ready = True
    assert told.prepare(text, ALONE) and text.guesses


def test_one_that_is_slower_than_what_it_saves_is_only_tried_now_and_then() -> None:
    drafter = Echo(cost=50.0)
    told, text = speculation(FLAT, drafter), sequence(max_tokens=100_000)
    teach(told, text, hits=4)
    for _ in range(20_000):  # of 20 ms each; a trial takes 200
        assert told.prepare(text, ALONE)
        told.confirm(text, -1)
    assert 9 <= len(drafter.asked) <= 11


def test_nobody_waits_for_a_trial() -> None:
    drafter = Echo(cost=50.0, ready=False)
    told, text = speculation(FLAT, drafter), sequence()
    teach(told, text, hits=4)
    for _ in range(100):
        assert told.prepare(text, ALONE)
    assert len(drafter.asked) == 16
    told.end(text)


def test_free_guesses_that_do_not_seem_to_pay_are_sent_now_and_then() -> None:
    """The table may be wrong, and is learnt from steps of such a size alone."""
    told, text = speculation(STEEP), sequence(max_tokens=10_000)
    teach(told, text, hits=8)
    sent = 0
    for position in range(4, 6404):
        told.prepare(text, ALONE)
        sent += sum(told.widths([text], ALONE, 100))
        text.send(1)
        told.confirm(text, position)
    assert 90 <= sent <= 100


def test_one_that_takes_time_is_not_asked_for_more_than_is_worth_it() -> None:
    drafter = Echo(cost=4.0)
    told, text = speculation(FLAT, drafter), sequence()
    teach(told, text, hits=3)
    told.prepare(text, ALONE)
    assert 1 <= len(text.guesses) <= 4


# Drafters that take time, where the way round is long


def teach_odds(told: Speculation, text: Sequence) -> None:
    """Two of three guesses come true, whatever came before."""
    for depth in range(MAX_GUESSES):
        for i in range(60):
            told._acceptance.learn(text.request.id, MODEL, depth, i % 3 > 0)


def far(drafter: Echo, **config: object) -> Speculation:
    return speculation(FLAT, drafter, link_ms=200.0, **config)


def test_a_row_need_not_wait_for_its_guesses() -> None:
    drafter = Echo(cost=4.0, ready=False)
    told, text = far(drafter), sequence()
    teach_odds(told, text)
    assert told.prepare(text, ALONE)
    assert drafter.pieces == [3]  # they take 12 ms, the stage 10 for them
    ahead = drafter.asked[0]
    assert ahead > 3
    assert told.widths([text], ALONE, 100) == [0]
    text.send(1)
    assert told.holds([text], ALONE)  # guesses are to follow
    told.extend(text, ALONE)
    assert told.width_ahead(text, 100) == 0
    drafter.ready = True
    told.extend(text, ALONE)
    assert len(text.guesses) >= 3 and told.width_ahead(text, 100) >= 3


@pytest.mark.parametrize("how", [{"asynchronous": False}, {"draft_tokens": 3}])
def test_it_waits_where_it_is_told_to(how: dict[str, object]) -> None:
    told, text = far(Echo(cost=4.0, ready=False), **how), sequence()
    teach_odds(told, text)
    assert not told.prepare(text, ALONE)


def test_it_waits_while_nothing_may_follow_it() -> None:
    told, text = far(Echo(cost=4.0, ready=False)), sequence()
    teach_odds(told, text)
    told.may_follow = False
    assert not told.prepare(text, ALONE)


def test_who_gets_no_guesses_runs_ahead() -> None:
    told, text = far(Silent(cost=4.0)), sequence()
    teach_odds(told, text)
    assert told.prepare(text, ALONE)
    text.send(1)
    assert not told.holds([text], ALONE)


def test_no_more_are_made_than_are_likely_to_be_wanted() -> None:
    drafter = Echo(cost=4.0)
    told, text = far(drafter), sequence()
    teach(told, text, hits=3)
    told.prepare(text, ALONE)
    text.send(1)
    for _ in range(10):
        told.extend(text, ALONE)
        text.send(told.width_ahead(text, 100))
    assert 4 <= len(text.guesses) <= 9


def test_free_guesses_that_are_worse_than_the_models_are_passed_over() -> None:
    drafter = Both(cost=4.0)
    told, text = far(drafter), sequence()
    for depth in (0, 1, 2):
        for _ in range(40):
            told._acceptance.learn(text.request.id, MODEL, depth, True)
    assert told.prepare(text, ALONE)
    assert text.kind == MODEL and text.guesses[0] == 4
    for _ in range(30):  # what was passed over comes true all the same, and that is seen
        told.prepare(text, ALONE)
        text.send(1)
        told.confirm(text, -1)
    told.prepare(text, ALONE)
    assert text.kind == "looked up"


def test_who_was_unlucky_is_tried_again() -> None:
    acceptance = Acceptance()
    for _ in range(200):
        acceptance.learn("a", MODEL, 0, True)
    for _ in range(30):
        acceptance.learn("b", MODEL, 0, False, length=100)
    before, soon, later = (acceptance.chances("b", MODEL, 0, 1, length)[0] for length in (100, 150, 400))
    assert before < 0.3 < soon < 0.7 < later
