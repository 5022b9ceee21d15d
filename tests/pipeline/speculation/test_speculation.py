"""How many guesses are trusted: by what they have brought, and what their rows cost."""

from __future__ import annotations

import pytest
from speculation_parts import ALONE, CLIFF, FLAT, FULL, STEEP, Echo, sequence, speculation, teach

from pipeline.pacing import Pace
from pipeline.speculation.acceptance import Acceptance
from pipeline.speculation.config import SpeculationConfig
from pipeline.speculation.drafter import MAX_GUESSES, MODEL
from shards.errors import ConfigurationError

# What comes true


def test_chances_are_what_came_true_of_those_that_got_so_far() -> None:
    acceptance = Acceptance()
    for _ in range(100):
        for depth, hit in ((0, True), (1, True), (2, False)):
            acceptance.learn("a", MODEL, depth, hit)
    first, second, third = acceptance.chances("a", MODEL, 0, 3)
    assert first > 0.9 and second > 0.85 and third < 0.1
    (rest,) = acceptance.chances("a", MODEL, 2, 1)  # two have come true already
    assert rest < 0.1
    other = acceptance.chances("b", MODEL, 0, 3)  # another sequence begins with what all have shown
    assert other[1] > 0.85 and other[2] < 0.1


def test_a_sequence_is_believed_over_the_others() -> None:
    acceptance = Acceptance()
    for _ in range(200):
        acceptance.learn("a", MODEL, 0, True)
    for _ in range(50):
        acceptance.learn("b", MODEL, 0, False)
    assert acceptance.chances("a", MODEL, 0, 1)[0] > 0.9 and acceptance.chances("b", MODEL, 0, 1)[0] < 0.2
    acceptance.end("b")
    assert acceptance.chances("b", MODEL, 0, 1)[0] > 0.7


def test_kinds_are_apart() -> None:
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.learn("a", "good", 0, True)
        acceptance.learn("a", "bad", 0, False)
    assert acceptance.chances("a", "good", 0, 1)[0] > 0.9 > 0.1 > acceptance.chances("a", "bad", 0, 1)[0]


def test_depths_beyond_those_that_are_counted_are_like_the_last() -> None:
    acceptance = Acceptance()
    acceptance.learn("a", MODEL, 3 * MAX_GUESSES, True)
    chances = acceptance.chances("a", MODEL, 2 * MAX_GUESSES, 3)
    assert chances == sorted(chances, reverse=True)


# How many go along


def test_where_rows_are_free_as_many_as_come_true() -> None:
    told, text = speculation(FLAT), sequence()
    teach(told, text, hits=5)
    assert told.prepare(text, ALONE)
    (width,) = told.widths([text], ALONE, 100)
    assert 5 <= width <= 7


def test_where_rows_are_dear_none() -> None:
    told, text = speculation(STEEP), sequence()
    teach(told, text, hits=1)
    told.prepare(text, ALONE)
    assert told.widths([text], ALONE, 100) == [0]


def test_not_beyond_a_cliff() -> None:
    told, text = speculation(CLIFF), sequence()
    teach(told, text, hits=6)
    told.prepare(text, ALONE)
    assert told.widths([text], ALONE, 100) == [3]


def test_of_several_those_most_likely_to_come_true() -> None:
    told, good, bad = speculation(((1, 10.0), (2, 10.0), (8, 14.0), (16, 40.0))), sequence("good"), sequence("bad")
    teach(told, good, hits=4)
    teach(told, bad, hits=0)
    for text in (good, bad):
        told.prepare(text, Pace(1, 2))
    widths = told.widths([good, bad], Pace(1, 2), 100)
    assert widths[0] >= 4 and widths[1] == 0


def test_no_more_than_there_is_room() -> None:
    told, texts = speculation(FLAT), [sequence(name) for name in "abc"]
    for text in texts:
        teach(told, text, hits=8)
        told.prepare(text, FULL)
    assert sum(told.widths(texts, FULL, 5)) == 5
    assert told.widths(texts, FULL, 0) == [0, 0, 0]


@pytest.mark.parametrize("count", [1, 3, 10])
def test_a_fixed_number_is_kept_whatever_it_brings(count: int) -> None:
    told, texts = speculation(STEEP, draft_tokens=count), [sequence(name) for name in "ab"]
    for text in texts:
        teach(told, text, hits=0)
        told.prepare(text, FULL)
    assert told.widths(texts, FULL, 100) == [count, count]
    assert told.widths(texts, FULL, count) == [count, 0]


def test_guesses_end_before_the_answer_does() -> None:
    told, text = speculation(FLAT), sequence(max_tokens=3)
    told.prepare(text, ALONE)
    assert len(text.guesses) == 2  # the row of the last one gives the third token
    assert told.prepare(sequence("b", max_tokens=1), ALONE)


@pytest.mark.parametrize("count", [0, MAX_GUESSES + 1])
def test_impossible_numbers_are_refused(count: int) -> None:
    with pytest.raises(ConfigurationError, match=str(MAX_GUESSES)):
        SpeculationConfig(count)


# Ahead


def test_the_next_guesses_go_behind_those_that_are_verified_if_they_are_likely() -> None:
    told, text = speculation(FLAT), sequence()
    teach(told, text, hits=12)
    told.prepare(text, ALONE)
    text.send(5)
    told.extend(text, ALONE)
    assert len(text.guesses) == 16  # there are others to be sent first
    assert told.width_ahead(text, 100) >= 1
    text.send(12)
    told.extend(text, ALONE)
    assert text.guesses == list(range(4, 4 + MAX_GUESSES))
    assert speculation(FLAT, asynchronous=False).width_ahead(text, 100) == 0


def test_unlikely_ones_do_not_stand_in_the_way_unless_the_way_is_long() -> None:
    for link_ms, sends in ((0.0, False), (2000.0, True)):
        told, text = speculation(FLAT, link_ms=link_ms), sequence()
        teach(told, text, hits=1)
        told.prepare(text, ALONE)
        text.send(2)
        assert (told.width_ahead(text, 100) > 0) == sends


def test_a_token_that_is_likely_guessed_is_not_run_ahead() -> None:
    told, text = speculation(FLAT, link_ms=1.0), sequence()
    text.send(1)
    assert not told.holds([text], ALONE)  # there is no guess
    told.prepare(text, ALONE)
    teach(told, text, hits=6)
    assert told.holds([text], ALONE)
    teach(told, text, hits=0, times=200)
    assert not told.holds([text], ALONE)


@pytest.mark.parametrize(("guessed", "least", "most"), [(50.0, 1, 200), (120.0, 1800, 2000)])
def test_guesses_that_hold_up_others_are_left_where_answers_get_slower_by_them(
    guessed: float, least: int, most: int
) -> None:
    told, text, made, now = speculation(FLAT), sequence(), 0, 0.0
    told.answers = FULL.in_flight * FULL.rows
    teach(told, text, hits=6)
    told.prepare(text, FULL)
    for _ in range(2000):
        width = told.widths([text] * FULL.rows, FULL, 100)[0]
        made += width > 0
        now += told.answers / (guessed if width else 80.0)
        told.note(now, told.answers)
    assert least <= made <= most


# What is counted


def test_guesses_that_were_sent_and_came_true_are_counted() -> None:
    told, text = speculation(FLAT), sequence()
    told.prepare(text, ALONE)
    text.send(3)
    assert not told.confirm(text, 4)
    assert told.confirm(text, 99)
    assert (told.right, text.sent, text.branch, text.guesses) == (1, 5, 1, [])
    told.end(text)
    assert isinstance(told.drafter, Echo) and told.drafter.ended == ["a"]


def test_a_guess_that_was_not_sent_teaches_as_well() -> None:
    told, text = speculation(STEEP), sequence()
    for position in range(4, 40):
        told.prepare(text, ALONE)
        text.send(1)
        assert not told.confirm(text, position)
    assert told.right == 0
    assert told._acceptance.chances("a", MODEL, 0, 1)[0] > 0.7


def test_a_question_after_a_while_finds_guesses_as_they_were() -> None:
    """Of who asks one thing after the other, thinks in between, and is answered well by guesses."""
    told, now = speculation(FLAT, Echo(cost=0.1), link_ms=50.0), 0.0
    for _ in range(12):
        text = sequence()
        teach(told, text, hits=8)
        for _ in range(5):
            told.look(1, may_follow=True)
            assert told.prepare(text, ALONE) and text.guesses
            text.guesses.clear()
            now += 0.07
            told.note(now, 4)
        told.look(0, may_follow=True)
        told.end(text)
        now += 60.0
