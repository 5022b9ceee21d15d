"""Guesses that may not pay are made as long as they are seen to."""

from __future__ import annotations

import pytest

from pipeline.speculation.evidence import Evidence


def answered(
    evidence: Evidence, plain: float, guessed: float, tokens: int, answers: int = 1, gain: float = 1.2
) -> float:
    """Answer so many tokens, at these rates without and with guesses; gives the tokens with guesses."""
    now, made = 0.0, 0
    for _ in range(tokens // answers):
        is_making = evidence.allows(answers, gain)
        now += answers / (guessed if is_making else plain)
        evidence.note(now, answers, answers, is_making, plain * (gain if is_making else 1.0))
        made += answers * is_making
    return made


@pytest.mark.parametrize("answers", [1, 4])
def test_what_does_not_pay_is_left_but_for_a_try_now_and_then(answers: int) -> None:
    made = answered(Evidence(), plain=80.0, guessed=60.0, tokens=20_000, answers=answers)
    assert 0 < made < (0.02 if answers == 1 else 0.05) * 20_000


@pytest.mark.parametrize("answers", [1, 4])
def test_what_pays_is_done_but_for_a_look_now_and_then(answers: int) -> None:
    made = answered(Evidence(), plain=80.0, guessed=110.0, tokens=20_000, answers=answers)
    assert made > 0.95 * 20_000


def test_what_is_done_once_is_not_held_against_guesses() -> None:
    evidence, now, made = Evidence(), 0.0, 0
    for token in range(1000):
        is_making = evidence.allows(1, 1.6)
        rate = (15.0 if token < 24 else 128.0) if is_making else 80.0  # kernels are made at first
        now += 1 / rate
        evidence.note(now, 1, 1, is_making, 80.0 * (1.6 if is_making else 1.0))
        made += is_making
    assert made == 1000


def test_who_expects_nothing_does_not_try() -> None:
    assert answered(Evidence(), 80.0, 60.0, 1000, gain=1.02) == 0


def test_who_gets_what_was_expected_of_guesses_does_not_look_what_it_would_be_without() -> None:
    assert answered(Evidence(), 80.0, 150.0, 1000, gain=2.0) == 1000


def test_what_costs_more_than_it_seems_to_is_left_however_much_is_expected() -> None:
    assert answered(Evidence(), 80.0, 60.0, 10_000, gain=2.0) < 0.03 * 10_000


def test_what_has_not_paid_is_tried_again_where_more_is_expected() -> None:
    evidence = Evidence()
    answered(evidence, 80.0, 60.0, 1000, gain=1.2)  # brings 0.75 times as many
    assert answered(evidence, 80.0, 120.0, 1000, gain=2.4) > 0.9 * 1000


def test_it_is_learnt_anew_when_it_changes() -> None:
    evidence = Evidence()
    answered(evidence, 80.0, 60.0, 3000)
    assert answered(evidence, 60.0, 80.0, 10_000) > 0.6 * 10_000


def test_the_time_between_two_answers_is_nobodys() -> None:
    evidence, now = Evidence(), 0.0
    for _ in range(40):
        for _ in range(64):
            now += 1 / 120
            evidence.note(now, 1, 1, True, 120.0)
        now += 30.0
        evidence.pause()
    assert evidence.allows(1, 1.5)


def test_numbers_of_answers_are_apart() -> None:
    evidence = Evidence()
    answered(evidence, 80.0, 110.0, 2000, answers=1)
    answered(evidence, 300.0, 200.0, 2000, answers=4)
    assert answered(evidence, 80.0, 110.0, 500, answers=1) > 400
    assert answered(evidence, 300.0, 200.0, 500, answers=4) < 100


def test_who_comes_and_goes_all_the_time_is_learnt_about_as_well() -> None:
    evidence, now, made = Evidence(), 0.0, 0
    for number in range(1000):
        answers = 5 + number % 4
        is_making = evidence.allows(answers, 1.3)
        for _ in range(3):
            now += answers / (60.0 if is_making else 80.0)
            evidence.note(now, answers, answers, is_making, 80.0 * (1.3 if is_making else 1.0))
        now += 0.5
        evidence.note(now, 2, 0, is_making, 80.0)  # a prompt was at work
        made += is_making
    assert made < 0.1 * 1000


def test_a_pause_is_no_measurement() -> None:
    evidence = Evidence()
    for i in range(200):
        evidence.note(0.01 * i, 1, 1, False, 50.0)
    evidence.note(100.0, 1, 0, False, 50.0)  # nobody is answered
    for i in range(200):
        evidence.note(200.0 + 0.01 * i, 1, 1, False, 50.0)
    assert evidence._records[1].truth[False] == pytest.approx(2.0, rel=0.05)
