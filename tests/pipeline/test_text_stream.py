from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text_stream import TextStream
from shards.errors import RequestError


class Pieces:
    """A detokenizer whose token i is the i-th of some texts, and which has some rest."""

    def __init__(self, pieces: list[str], rest: str = "") -> None:
        self._pieces, self._rest = pieces, rest

    def add(self, token: int) -> str:
        return self._pieces[token]

    def finish(self) -> str:
        return self._rest


def shown(pieces: list[str], stop: list[str], rest: str = "") -> tuple[list[str], bool]:
    """What each token shows, with what finishing shows last; and whether a stop string came."""
    stream = TextStream(Pieces(pieces, rest), stop)
    out = [stream.add(i) for i in range(len(pieces))]
    return [*out, stream.finish()], stream.is_stopped


def cut_by_search(text: str, stop: list[str]) -> tuple[str, bool]:
    """The plain way: grow the text by one character until it ends with a stop string."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stop if text[:end].endswith(s)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


PIECES = st.lists(st.text("ab", max_size=4), max_size=12)
STOP = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)


@given(PIECES, STOP, st.text("ab", max_size=3))
def test_shows_what_a_search_of_the_whole_text_shows(pieces: list[str], stop: list[str], rest: str) -> None:
    out, stopped = shown(pieces, stop, rest)
    assert ("".join(out), stopped) == cut_by_search("".join(pieces) + rest, stop)


@given(PIECES, STOP)
def test_holds_back_no_more_than_may_begin_a_stop_string(pieces: list[str], stop: list[str]) -> None:
    stream = TextStream(Pieces(pieces), stop)
    text = given_out = ""
    for i, piece in enumerate(pieces):
        text += piece
        given_out += stream.add(i)
        if stream.is_stopped:
            return
        held = text.removeprefix(given_out)
        assert given_out + held == text
        assert not held or any(s.startswith(held) and s != held for s in stop)


def test_without_stop_strings_everything_is_shown_at_once() -> None:
    assert shown(["Hel", "", "lo"], []) == (["Hel", "", "lo", ""], False)


def test_a_stop_string_across_tokens_is_never_shown() -> None:
    assert shown(["Paris", "\n", "\nUs", "er:"], ["\n\nUser"]) == (["Paris", "", "", "", ""], True)


def test_a_false_alarm_is_shown_as_soon_as_it_is_one() -> None:
    assert shown(["a", "\n", "\nU", "nited"], ["\n\nUser"]) == (["a", "", "", "\n\nUnited", ""], False)


def test_what_is_held_at_the_end_is_shown() -> None:
    assert shown(["a", "\n"], ["\n\n"]) == (["a", "", "\n"], False)


def test_a_stop_string_may_be_completed_by_the_rest() -> None:
    assert shown(["a!"], ["!�"], rest="�") == (["a", ""], True)


def test_nothing_comes_after_a_stop_string() -> None:
    assert shown(["a.", "b", "c"], ["."], rest="d") == (["a", "", "", ""], True)


def test_of_several_the_one_complete_first_ends_the_answer_whatever_the_tokens() -> None:
    for pieces in (["abcd"], ["a", "b", "c", "d"]):
        out, stopped = shown(pieces, ["abcd", "c", "bc"])
        assert ("".join(out), stopped) == ("a", True)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="stop: a stop string is empty"):
        TextStream(Pieces([]), ["a", ""])
