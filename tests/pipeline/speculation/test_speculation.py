"""How many guesses are trusted: by what they have brought, and what their rows cost."""

from __future__ import annotations

from collections.abc import Sequence as Line

import pytest

from pipeline.messages import Request, Sampling
from pipeline.pacing import Pace
from pipeline.sequence import Sequence
from pipeline.speculation.acceptance import Acceptance
from pipeline.speculation.config import SpeculationConfig
from pipeline.speculation.drafter import MAX_GUESSES, MODEL, DrafterFacts, DraftText
from pipeline.speculation.speculation import Speculation
from pipeline.step_times import StepTimes
from shards.errors import ConfigurationError

FLAT = ((1, 10.0), (64, 11.0))
"""Rows cost next to nothing, as where the weights have to be read."""
STEEP = ((1, 10.0), (64, 640.0))
"""A row costs what it costs."""
CLIFF = ((1, 10.0), (4, 10.5), (5, 20.0), (8, 21.0))


class Echo:
    """Guesses the next numbers; what it does not have costs time, if it is told so."""

    def __init__(self, cost: float = 0.0, ready: bool = True) -> None:
        self.on_ready = lambda: None
        self.cost, self.ready = cost, ready
        self.asked: list[int] = []
        self.ended: list[str] = []

    def guess(self, text: DraftText, count: int, is_free: bool = False) -> Line[int] | None:
        if is_free and self.cost:
            return ()
        self.asked.append(count)
        start = len(text.tokens) + len(text.guesses)
        return range(start, start + count) if self.ready else None

    def end(self, key: str, client: str, tokens: Line[int]) -> None:
        self.ended.append(key)

    def kind(self, key: str) -> str:
        return MODEL

    def cost_ms(self, count: int) -> float:
        return self.cost * count

    @property
    def facts(self) -> DrafterFacts:
        return DrafterFacts("echo")

    def close(self) -> None: ...


def speculation(
    table: tuple[tuple[int, float], ...] = FLAT,
    drafter: Echo | None = None,
    stages: int = 2,
    link_ms: float = 0.0,
    **config: object,
) -> Speculation:
    settings = SpeculationConfig(**config)  # type: ignore[arg-type]
    return Speculation(settings, drafter or Echo(), StepTimes(table, link_ms, stages), stages)


def sequence(name: str = "a", max_tokens: int = 1000) -> Sequence:
    """One whose tokens are their positions, with the row of its last token to be sent."""
    made = Sequence(Request(name, (0, 1, 2, 3), Sampling(), max_tokens))
    made.sent = 3
    return made


def teach(told: Speculation, text: Sequence, hits: int, times: int = 40) -> None:
    """Of every guess so many tokens come true, the next one is wrong."""
    for _ in range(times):
        for depth in range(hits + 1):
            told._acceptance.learn(text.request.id, MODEL, depth, depth < hits)


ALONE, FULL = Pace(1, 1), Pace(2, 8)


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
    for _ in range(20):
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


# Ahead


def test_the_next_guesses_go_behind_those_that_are_verified_if_they_are_likely() -> None:
    told, text = speculation(FLAT), sequence()
    teach(told, text, hits=12)
    told.prepare(text, ALONE)
    text.send(5)
    told.extend(text)
    assert len(text.guesses) == 16  # there are others to be sent first
    assert told.width_ahead(text, 100) >= 1
    text.send(12)
    told.extend(text)
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
    assert not told.holds(text, ALONE)  # there is no guess
    told.prepare(text, ALONE)
    teach(told, text, hits=6)
    assert told.holds(text, ALONE)
    teach(told, text, hits=0, times=200)
    assert not told.holds(text, ALONE)


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
