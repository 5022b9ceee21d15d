from __future__ import annotations

import random
from collections.abc import Sequence

from draft_stage import VOCABULARY, DraftStage, next_token
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.messages import NOT_YET, Sampling
from pipeline.speculation.draft_session import IN_FLIGHT, DraftLimits, DraftSession
from pipeline.speculation.drafter import DraftText

GREEDY, PENALISED = Sampling(temperature=0.0), Sampling(presence_penalty=1.0)


def thought(tokens: Sequence[int], count: int) -> list[int]:
    """What the model guesses after a text."""
    line = list(tokens)
    for _ in range(count):
        line.append(next_token(line))
    return line[len(tokens) :]


class Driven:
    """A session on a stage."""

    def __init__(self, max_rows: int = 16, max_sequences: int = 4, kv_tokens: int = 512, block: int = 4) -> None:
        self.session = DraftSession(DraftLimits(max_rows, max_sequences, kv_tokens, block, 300, VOCABULARY))
        self.stage = DraftStage(kv_tokens, block)
        self.log: list[list[int]] = []
        self.now = 0.0

    def guess(
        self,
        tokens: list[int],
        count: int = 4,
        guesses: Sequence[int] = (),
        key: str = "a",
        sampling: Sampling = GREEDY,
    ) -> list[int] | None:
        return self.session.guess(DraftText(key, "", tokens, guesses, sampling), count, self.now)

    def send(self) -> None:
        while (step := self.session.next_step()) is not None:
            self.log.append(step.tokens.tolist())
            assert len(step.tokens) <= self.session._limits.max_rows
            assert len(step.rows) <= self.session._limits.max_sequences
            assert len(self.session._in_flight) <= IN_FLIGHT
            self.stage.send(step)

    def work(self) -> bool:
        """One step; whether guesses are there."""
        self.send()
        result = self.stage.work()
        self.now += 1e-3
        return result is not None and self.session.complete(result, self.now)

    def finish(self) -> None:
        """Until there is nothing to do."""
        self.send()
        while self.session._in_flight:
            self.work()

    def guesses(self, tokens: list[int], count: int = 4, **more: object) -> list[int]:
        """Ask until they are there."""
        while (found := self.guess(tokens, count, **more)) is None:  # type: ignore[arg-type]
            while not self.work():
                assert self.session._in_flight, "nobody works on what is waited for"
        return found


def test_guesses_are_drawn_without_waiting_for_one_another() -> None:
    driven = Driven()
    assert driven.guess([1, 2, 3]) is None
    driven.send()
    assert driven.log == [[1, 2, 3], [NOT_YET]]
    driven.finish()
    assert [len(tokens) for tokens in driven.log] == [3, 1, 1, 1]
    assert driven.guess([1, 2, 3]) == thought([1, 2, 3], 4)


def test_what_came_true_is_kept_and_the_rest_rolled_back() -> None:
    driven, tokens = Driven(), [1, 2, 3]
    right = driven.guesses(tokens)
    driven.log.clear()
    tokens += right
    tokens.append((next_token(tokens) + 1) % VOCABULARY)  # what the other model says after the last guess
    assert driven.guesses(tokens) == thought(tokens, 4)
    assert driven.log[0] == tokens[-2:]
    driven.log.clear()
    tokens.append((next_token(tokens) + 1) % VOCABULARY)  # not what was guessed
    assert driven.guesses(tokens) == thought(tokens, 4)
    assert driven.log[0] == tokens[-1:]


def test_it_thinks_on_behind_its_own_guesses_and_those_of_others() -> None:
    driven, tokens = Driven(), [1, 2, 3]
    first = driven.guesses(tokens)
    rows = driven.stage.rows
    assert driven.guesses(tokens, guesses=first) == thought(tokens + first, 4)
    assert driven.stage.rows == rows + 4
    other = [(first[0] + 1) % VOCABULARY, 5]
    assert driven.guesses(tokens, guesses=other) == thought(tokens + other, 4)


def test_a_text_far_behind_waits_for_nothing() -> None:
    driven, tokens = Driven(), [i % 10 for i in range(200)]
    assert driven.guess(tokens) == []
    tokens.append(3)
    assert driven.guess(tokens) == []
    driven.finish()
    assert max(map(len, driven.log)) == 16
    assert driven.guesses(tokens) == thought(tokens, 4)
    assert driven.stage.rows == 201 + 3  # nothing was read twice


def test_texts_share_steps_and_long_ones_hold_none_up() -> None:
    driven = Driven()
    long, short = [i % 10 for i in range(60)], [1, 2]
    assert driven.guess(long, key="long") is None
    assert driven.guess(short, key="short") is None
    while not driven.work():
        pass
    assert driven.guess(short, key="short") == thought(short, 4)
    assert driven.log[0] == short + long[:14]
    driven.finish()
    assert driven.guess(long, key="long") == thought(long, 4)


def test_the_text_asked_about_longest_ago_makes_room() -> None:
    driven = Driven(kv_tokens=64)
    texts = {key: [i + j for j in range(8)] for i, key in enumerate("abc")}
    for key, tokens in texts.items():
        driven.guesses(tokens, key=key)
    driven.guesses(texts["a"], key="a")
    driven.guesses(list(range(10)) * 3, key="d")
    assert list(driven.session._texts) == ["c", "a", "d"]
    driven.finish()
    assert driven.stage.sequences == 3
    assert driven.guesses(texts["b"], key="b") == thought(texts["b"], 4)


def test_nobody_who_is_waited_for_makes_room() -> None:
    driven = Driven(kv_tokens=32)
    assert driven.guess(list(range(10)), key="a") is None
    driven.send()
    assert driven.guess(list(range(10)) * 2, key="b") == []
    driven.finish()
    assert driven.guess(list(range(10)), key="a") == thought(list(range(10)), 4)
    assert driven.guess(list(range(10)) * 4, key="c") == []  # it never fits


def test_what_the_model_cannot_read_is_not_guessed_at() -> None:
    driven = Driven(kv_tokens=2048)
    assert driven.guess([1, 2, VOCABULARY]) == []
    assert driven.guess([1] * 300) == []  # the end of its context
    assert driven.guess([2] * 298, key="b") == []
    driven.finish()
    assert driven.guesses([2] * 298, key="b") == thought([2] * 298, 2)


def test_texts_that_end_leave_nothing() -> None:
    driven = Driven()
    for i in range(20):
        driven.guess([1, 2, i % 10], key=str(i))
        driven.work()
        driven.session.end(str(i))
    driven.session.end("never asked about")
    driven.finish()
    assert (driven.session.texts, driven.session.held_tokens, driven.stage.sequences) == (0, 0, 0)


def test_what_guesses_cost_is_learnt() -> None:
    driven, tokens = Driven(), [1, 2, 3]
    assert driven.session.cost_ms(1) > 0  # else it would be asked for nothing
    for _ in range(10):
        tokens += driven.guesses(tokens)
        tokens.append(0)
    assert 3.9 < driven.session.cost_ms(4) < 4.1  # a millisecond a step


@given(st.integers(0, 10**6))
@settings(max_examples=60)
def test_guesses_are_what_the_model_says_whatever_happens(seed: int) -> None:
    """Texts come, go on as guessed or otherwise, end, and are asked about at any time, with any room."""
    chance = random.Random(seed)
    driven = Driven(chance.randint(1, 40), chance.randint(1, 4), 4 * chance.randint(8, 60), 4)
    texts: dict[str, list[int]] = {}
    waits: dict[str, tuple[int, int]] = {}
    given: set[tuple[str, int, int]] = set()  # guesses of others, which it may give back
    for _ in range(150):
        move = chance.random()
        if move < 0.1 or not texts:
            length = chance.choice((1, 5, 20, 120))
            texts[str(len(texts) + chance.randint(0, 9**9))] = [chance.randrange(VOCABULARY) for _ in range(length)]
        key = chance.choice(list(texts))
        tokens = texts[key]
        if move < 0.4:
            guesses = thought(tokens, chance.randint(0, 3)) + [chance.randrange(VOCABULARY)] * (chance.random() < 0.2)
            count = chance.randint(1, 6)
            sampling = PENALISED if int(key) % 3 == 0 else GREEDY
            given |= {(key, len(tokens) + i, guess) for i, guess in enumerate(guesses)}
            found = driven.guess(tokens, count, guesses, key, sampling)
            waits.pop(key, None)
            if found is None:
                waits[key] = len(tokens) + len(guesses), count
            else:
                line = tokens + guesses
                assert len(found) in (0, min(count, 300 - len(line)))
                for token in found:
                    assert token == next_token(line) or (key, len(line), token) in given
                    line.append(token)
        elif move < 0.6:
            is_right = chance.random() < 0.6
            tokens += thought(tokens, chance.randint(1, 4)) if is_right else [chance.randrange(VOCABULARY)]
        elif move < 0.65:
            driven.session.end(key)
            del texts[key]
            waits.pop(key, None)
        else:
            driven.work()
        assert driven.session.held_tokens <= driven.session._limits.kv_tokens
    driven.finish()
    for key, (length, count) in waits.items():  # whoever was told to wait has not waited for nothing
        text = driven.session._texts.get(key)  # or had its guesses, and made room before it asked again
        assert text is None or len(text.line) >= min(length + count, 300)
    for key in texts:
        driven.session.end(key)
    driven.finish()
    assert (driven.session.texts, driven.session.held_tokens, driven.stage.sequences) == (0, 0, 0)


def test_guesses_that_take_too_long_are_given_up_until_a_result_comes() -> None:
    driven = Driven()
    driven.session.least_patience_ms = 200.0
    assert driven.session.patience_ms(driven.now) is None  # nobody waits
    assert driven.guess([1, 2, 3]) is None
    patience = driven.session.patience_ms(driven.now)
    assert patience is not None and patience >= 200.0
    driven.send()
    driven.now += 2e-3 * patience
    assert driven.session.patience_ms(driven.now) == 0.0
    driven.session.give_up()
    assert driven.session.patience_ms(driven.now) is None
    assert driven.guess([1, 2, 3]) == []
    driven.finish()
    assert driven.guess([1, 2, 3]) == thought([1, 2, 3], 4)
