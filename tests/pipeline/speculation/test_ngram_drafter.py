from __future__ import annotations

import sys
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import Sampling
from pipeline.speculation.drafter import DraftText
from pipeline.speculation.history import History
from pipeline.speculation.ngram import LEAST, LONGEST, NgramDrafter
from pipeline.speculation.token_index import CANDIDATES, TokenIndex

TOKENS = st.lists(st.integers(0, 3), max_size=120)
"""Of a small vocabulary, in which everything occurs again and again."""


def text(tokens: list[int], guesses: list[int] | tuple[int, ...] = (), key: str = "a", client: str = "me") -> DraftText:
    return DraftText(key, client, tokens, guesses, Sampling())


def searched(tokens: list[int], run: list[int], least: int) -> tuple[int, int]:
    """What TokenIndex.find answers, by trying every place."""
    ends = [
        place
        for place in reversed(range(least, len(tokens)))
        if tokens[place - least : place] == run[len(run) - least :]
    ]
    best, most = -1, 0
    for place in ends[:CANDIDATES] if len(run) >= least else ():
        same = 0
        while same < min(len(run), place) and tokens[place - 1 - same] == run[-1 - same]:
            same += 1
        if same > most:
            best, most = place, same
    return best, most


def guessed(tokens: list[int], guesses: list[int], count: int) -> list[int]:
    """What a drafter without a history answers."""
    place, length = searched(tokens, [*tokens, *guesses][-LONGEST:], LEAST)
    line = [*tokens, *guesses]
    for i in range(count if length else 0):
        line.append(line[place + i])
    return line[len(tokens) + len(guesses) :]


@given(TOKENS, st.lists(st.integers(0, 3), max_size=5), st.integers(1, 8), st.lists(st.integers(1, 9), max_size=20))
def test_it_guesses_what_a_search_of_the_whole_text_finds(
    tokens: list[int], guesses: list[int], count: int, growth: list[int]
) -> None:
    drafter = NgramDrafter(history_tokens=0)
    length = 0
    for more in [*growth, len(tokens)]:
        length = min(len(tokens), length + more)
        assert list(drafter.guess(text(tokens[:length], guesses), count)) == guessed(tokens[:length], guesses, count)


@given(TOKENS, st.lists(st.integers(0, 40)), TOKENS)
def test_what_was_dropped_is_not_found_and_not_kept(tokens: list[int], drops: list[int], run: list[int]) -> None:
    index, dropped = TokenIndex(LEAST), 0
    index.extend(tokens)
    for count in drops:
        count = min(count, len(tokens) - dropped)
        index.drop(count)
        dropped += count
        kept = tokens[dropped:]
        place, length = index.find(run)
        # Of the runs that go on behind the cut the index still knows the first places; less than a run is left there.
        assert (place - dropped if place >= 0 else -1, length) == searched(kept, run, LEAST)
        assert length <= place - dropped if place >= 0 else length == 0
        assert index.after(dropped, len(tokens)) == kept
        assert len(index._latest) <= len(kept)
        assert len(index._tokens) <= 2 * len(kept) + 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 9), max_size=30))), st.integers(0, 60))
def test_a_history_holds_no_more_than_it_may(texts: list[tuple[str, list[int]]], capacity: int) -> None:
    history = History(capacity)
    for client, tokens in texts:
        history.add(client, tokens)
        held = [client.index for client in history._clients.values()]
        assert history.held == sum(len(index) - index._kept_from for index in held) <= capacity
        assert sum(len(index._latest) for index in held) <= capacity


def test_the_client_that_has_most_makes_room() -> None:
    history = History(40)
    history.add("small", list(range(10)))
    for begin in range(10, 100, 10):
        history.add("large", list(range(begin, begin + 9)))
    assert history.find("small", list(range(8)), 2) == ([8, 9], 8)
    assert history.find("large", list(range(10, 18)), 2) == ([], 0)
    assert history.find("large", list(range(90, 98)), 2) == ([98], 8)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), TOKENS), min_size=1, max_size=8),
    st.integers(0, 7),
    st.integers(0, 120),
    st.integers(1, 8),
)
def test_only_the_own_texts_of_a_client_are_found(
    texts: list[tuple[str, list[int]]], which: int, end: int, count: int
) -> None:
    run = texts[which % len(texts)][1][:end]
    both, alone = History(10**6), History(10**6)
    for client, tokens in texts:
        both.add(client, tokens)
        if client == "a":
            alone.add(client, tokens)
    found, length = both.find("a", run, count)
    assert (found, length) == alone.find("a", run, count)
    assert bool(found) == bool(length) and len(found) <= count
    if found:  # they follow the run within one text
        wanted = run[len(run) - length :] + found
        assert any(
            tokens[i : i + len(wanted)] == wanted
            for client, tokens in texts
            if client == "a"
            for i in range(len(tokens))
        )


def test_the_longer_run_wins_wherever_it_is() -> None:
    drafter, run = NgramDrafter(), list(range(10, 20))
    drafter.end("old", "me", [*run, 7, 8])
    assert drafter.guess(text([*run[1:], 1, 2, *run]), 2) == [7, 8]  # ten tokens there, nine in the text
    assert drafter.guess(text([*run, 1, 2, *run], key="b"), 2) == [1, 2]  # as many: its own
    assert list(drafter.guess(text(run[4:], key="c"), 2)) == []  # too few
    assert list(drafter.guess(text(run, key="d", client="another"), 2)) == []


def test_repetition_goes_on() -> None:
    drafter = NgramDrafter()
    assert drafter.guess(text([1, 2, 3, 1, 2, 3]), 7) == [1, 2, 3, 1, 2, 3, 1]
    assert drafter.guess(text([1, 2, 3, 1, 2, 3], [1, 2]), 4) == [3, 1, 2, 3]
    assert drafter.guess(text([4, 4, 4, 4], key="b"), 3) == [4, 4, 4]


def test_nothing_is_kept_of_texts_that_have_ended_but_the_history() -> None:
    drafter = NgramDrafter(history_tokens=100)
    for i in range(50):
        tokens = list(range(i, i + 20))
        drafter.guess(text(tokens, key=str(i)), 4)
        assert drafter.facts.texts == 1
        drafter.end(str(i), "me", tokens)
    drafter.end("never asked about", "me", [1, 2, 3])
    assert drafter.facts.texts == 0
    assert 0 < drafter.facts.held_tokens <= 100
    assert not drafter.cost_ms(8)


def test_a_text_costs_what_it_grows_by() -> None:
    """Calls of functions stand for time, which depends on the machine."""

    def calls(length: int) -> int:
        drafter, tokens = NgramDrafter(), list(range(1000)) * (length // 1000)
        drafter.guess(text(tokens), 4)
        count = 0

        def profile(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(profile)
        try:
            for token in range(10):
                tokens.append(token)
                drafter.guess(text(tokens), 4)
        finally:
            sys.setprofile(None)
        return count

    short, long = calls(1000), calls(50_000)
    assert long <= 4 * short


def test_pairs_of_any_two_tokens_are_told_apart() -> None:
    """Also in vocabularies whose ids do not fit the index's keys."""
    tokens = [1, 2**21, 0, 5, 2, 0, 3, 7]
    index = TokenIndex(2)
    index.extend(tokens)
    for before, after in pairwise(range(2, len(tokens))):
        place, length = index.find(tokens[:before])
        assert (place, length) == (before, before) and index.after(place, 1) == [tokens[after - 1]]
