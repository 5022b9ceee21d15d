"""Wishes that are changed, settled and taken back."""

from __future__ import annotations

import threading

import pytest

from agent.fleet.head.wishes import Wishes, words
from pipeline.planning.plan import Wish
from shards.errors import CapacityError

FIRST = Wish(users=2, context=512)


def accept(_: Wish) -> None:
    pass


def refuse(_: Wish) -> None:
    raise CapacityError("900 GB are missing")


def test_an_impossible_change_changes_nothing() -> None:
    wishes = Wishes(FIRST, 8192)
    with pytest.raises(CapacityError):
        wishes.change({"users": 1000}, refuse)
    assert wishes.current is FIRST


def test_a_wish_that_did_not_work_is_taken_back() -> None:
    wishes = Wishes(FIRST, 8192)
    wish = wishes.change({"users": 3}, accept)
    assert wishes.take_back(wish) and wishes.current is FIRST


def test_of_a_wish_that_worked_nothing_is_taken_back() -> None:
    wishes = Wishes(FIRST, 8192)
    wishes.settled = wish = wishes.change({"users": 3}, accept)
    assert not wishes.take_back(wish) and wishes.current is wish


def test_a_newer_wish_stays() -> None:
    wishes = Wishes(FIRST, 8192)
    old = wishes.change({"users": 3}, accept)
    new = wishes.change({"users": 4}, accept)
    assert wishes.take_back(old) and wishes.current is new


def test_changes_at_once_all_count() -> None:
    wishes = Wishes(FIRST, 8192)
    both = threading.Barrier(2)

    def change(field: str, value: int) -> None:
        both.wait()
        wishes.change({field: value}, accept)

    threads = [threading.Thread(target=change, args=one) for one in (("users", 9), ("context", 99))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (wishes.current.users, wishes.current.context) == (9, 99)


def test_a_wish_in_words() -> None:
    wish = Wish(users=1, context=99, stages=2, replicas=False)
    assert words(wish) == "1 user with 99 tokens each, 2 stages a copy, one copy"
    assert words(Wish(users=3, context=99)) == "3 users with 99 tokens each"
