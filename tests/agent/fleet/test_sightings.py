from __future__ import annotations

import itertools
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zeroconf import ServiceInfo

from agent.fleet.discovery.announcement import SERVICE, Announcement
from agent.fleet.discovery.sightings import Record, Sightings

LIFE = 30.0


class Air:
    """A cache and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.records: dict[str, Record] = {}
        self.sightings = Sightings()
        self._count = 0

    def hear(self, name: str, key: str = "a", pc: str = "desk") -> None:
        """A new announcement, or an answer if it is like the last one."""
        announcement = Announcement(key=key * 40, role="node", name=pc, addresses=("10.0.0.1",))
        self.say(name, ServiceInfo(SERVICE, f"x.{SERVICE}", properties=announcement.to_text(1)).text)

    def say(self, name: str, text: bytes) -> None:
        self.records[name] = Record(text, self.now, self.now + LIFE)
        self.sightings.add(name)

    def leave(self, name: str) -> None:
        self.records.pop(name, None)
        self.sightings.goodbye(name)

    def update(self, after: float = 0.0) -> bool:
        self.now += after
        return self.sightings.update(self.now, self.records.get)

    def visible(self) -> list[str]:
        self.update(0.001)
        return [one.name for one in self.sightings.visible]


@pytest.fixture
def air() -> Air:
    return Air()


def test_who_announces_is_seen_until_the_goodbye(air: Air) -> None:
    air.hear("one", "a", "desk")
    air.hear("two", "b", "desk")
    assert air.visible() == ["desk", "desk"]
    air.leave("one")
    assert [one.key[0] for one in air.sightings.visible] == ["b"]


def test_an_answer_that_comes_after_the_goodbye_brings_nobody_back(air: Air) -> None:
    air.hear("first", pc="first")
    air.update()
    air.now += 5
    air.hear("second", pc="second")
    air.update()
    air.now += 0.1
    air.hear("first", pc="first")
    assert air.visible() == ["first", "second"]
    air.leave("second")
    air.hear("second", pc="second")  # it was on its way
    assert air.visible() == ["first"]  # nor is the first doubted
    air.now += 2
    air.hear("second", pc="second")
    assert air.visible() == ["first"]


def test_who_only_seemed_to_have_left_is_taken_in_again(air: Air) -> None:
    air.hear("one")
    air.update()
    air.leave("one")  # somebody else has said so
    air.update(0.001)
    air.update(3.1)
    air.hear("one")
    assert air.visible() == ["desk"]
    air.sightings.remove("one")  # it was not heard of for long
    air.hear("one")
    assert air.visible() == ["desk"]


def test_who_is_silent_is_asked_and_then_forgotten(air: Air) -> None:
    assert air.update()  # who is there?
    air.hear("one")
    assert not air.update(0.75 * LIFE)
    asked = []
    while air.now < 1000 + LIFE - 0.25:
        assert air.sightings.visible
        if air.update(0.25):
            asked.append(air.now - 1000)
    assert asked == [0.8 * LIFE, 0.8 * LIFE + 1, 0.8 * LIFE + 3]
    air.update(0.25)
    assert air.sightings.visible == ()
    asked = [seconds for seconds in range(1, 600) if air.update(1.0)]
    assert all(59 <= later - sooner <= 61 for sooner, later in itertools.pairwise(asked))
    assert len(asked) >= 9
    air.hear("one")
    assert air.visible() == ["desk"]


def test_an_answer_is_as_good_as_an_announcement(air: Air) -> None:
    air.hear("one")
    for _ in range(10):
        assert air.update(0.85 * LIFE)
        air.hear("one")
        assert air.visible() == ["desk"]


def test_a_change_replaces_what_was_known(air: Air) -> None:
    air.hear("one", pc="desk")
    assert air.visible() == ["desk"]
    air.hear("one", pc="table")
    assert air.visible() == ["table"]


def test_one_who_was_killed_and_came_back_is_seen_once(air: Air) -> None:
    air.hear("old", pc="old")
    assert air.visible() == ["old"]
    air.now += 0.5
    air.hear("new", pc="new")
    assert air.update()
    assert air.visible() == ["new"]
    air.leave("new")
    assert air.visible() == []


def test_two_with_one_identity_are_both_seen_once_the_first_has_answered(air: Air) -> None:
    air.hear("first", pc="first")
    air.update()
    air.now += 5
    air.hear("second", pc="second")
    assert air.update()
    assert air.visible() == ["second"]
    air.now += 0.1
    air.hear("first", pc="first")
    assert air.visible() == ["first", "second"]
    assert not air.update(1.0)


def test_the_question_is_repeated_if_the_answer_is_lost(air: Air) -> None:
    air.hear("first")
    air.update()
    air.now += 1
    air.hear("second")
    assert air.update()
    assert not air.update(0.5)
    assert air.update(0.6)


def test_what_is_malformed_is_noted_once(air: Air, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "agent.fleet.discovery.sightings"):
        for count in range(5):
            air.say("bad\x1b[2J", b"\x03k=%d" % count)
            assert air.visible() == []
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert "\x1b" not in caplog.text


def test_only_so_many_are_kept_and_the_empty_ones_give_way(air: Air) -> None:
    for number in range(1000):
        air.sightings.add(f"empty {number}")
    air.hear("real")
    assert air.visible() == ["desk"]
    assert not air.update(0.1)
    air.update(1000)
    for number in range(1000):
        air.hear(f"flood {number}", "b", "flood")
        air.update(0.001)
    assert len(air.sightings.visible) <= 256
    assert "desk" not in {one.name for one in air.sightings.visible}  # its record expired long before
    air.hear("late", "c", "late")
    assert "late" not in air.visible()


@given(st.lists(st.tuples(st.sampled_from("12345"), st.sampled_from("ab"), st.floats(0, 40))))
def test_a_killed_one_never_stands_beside_its_successor(starts: list[tuple[str, str, float]]) -> None:
    air = Air()
    last: dict[str, str] = {}
    for number, (_, key, pause) in enumerate(starts):
        air.update(pause)
        air.hear(f"start {number}", key, f"{key}-{number}")
        last[key] = f"{key}-{number}"
        air.update()
        seen = [one.name for one in air.sightings.visible]
        assert set(seen) <= set(last.values())
        assert last[key] in seen
