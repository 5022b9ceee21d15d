from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline import affinity
from pipeline.affinity import PrefixAffinity

CHUNK = affinity._CHUNK
SYSTEM = tuple(range(1000, 1000 + 3 * CHUNK))


def test_the_longest_shared_beginning_decides() -> None:
    places = PrefixAffinity[str]()
    places.note(SYSTEM[: 2 * CHUNK], "short")
    places.note((*SYSTEM, 1, 2, 3), "long")
    places.note((7,) * CHUNK, "other")
    assert places.find((*SYSTEM, 9, 9)) == "long"
    assert places.find((*SYSTEM[: 2 * CHUNK], 5)) == "long"  # it had these later
    assert places.find((7,) * (2 * CHUNK)) == "other"


def test_what_is_not_worth_looking_for_is_nowhere() -> None:
    places = PrefixAffinity[str]()
    places.note(SYSTEM, "a")
    assert places.find(SYSTEM[: CHUNK - 1]) is None
    assert places.find((0, *SYSTEM)) is None
    assert places.find(()) is None


def test_a_copy_that_is_gone_is_forgotten() -> None:
    places = PrefixAffinity[str]()
    places.note(SYSTEM, "a")
    places.note((7,) * CHUNK, "b")
    places.keep("b".__eq__)
    assert places.find(SYSTEM) is None and places.find((7,) * CHUNK) == "b"


prompts = st.lists(st.sampled_from("abc"), max_size=4).map(
    lambda parts: tuple(ord(p) for p in parts for _ in range(CHUNK))
)


@given(st.lists(st.tuples(prompts, st.integers(0, 3))))
def test_it_finds_what_comparing_all_would_find(history: list[tuple[tuple[int, ...], int]]) -> None:
    places, latest = PrefixAffinity[int](), dict[tuple[int, ...], int]()
    for prompt, copy in history:
        beginnings = [prompt[:end] for end in range(CHUNK, len(prompt) + 1, CHUNK)]
        known = [latest[beginning] for beginning in beginnings if beginning in latest]
        assert places.find(prompt) == (known[-1] if known else None)
        places.note(prompt, copy)
        latest |= dict.fromkeys(beginnings, copy)


def test_memory_is_bounded_and_what_was_used_longest_ago_goes() -> None:
    places = PrefixAffinity[int]()
    places.note(SYSTEM, 1)
    for number in range(affinity._REMEMBERED + 10):
        places.note((number,) * CHUNK, 2)
        if number % 1000 == 0:
            places.note(SYSTEM, 1)
    assert len(places._places) == affinity._REMEMBERED
    assert places.find(SYSTEM) == 1
    assert places.find((0,) * CHUNK) is None
    places.note(range(3 * affinity._REMEMBERED * CHUNK), 3)
    assert len(places._places) == affinity._REMEMBERED
