"""Waiting awake: where it pays, and no longer than it does."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from time import sleep

import pytest

from pipeline.spin_wait import SpinWait


class Clock:
    """Time that goes on by a millisecond each time somebody looks for the item."""

    def __init__(self) -> None:
        self.now, self.looks, self.arrives = 100.0, 0, 0.0

    def __call__(self) -> float:
        return self.now

    def is_there(self) -> bool:
        self.looks += 1
        self.now += 0.001
        return self.now >= self.arrives

    def take(self) -> str:
        self.now = max(self.now, self.arrives)
        return "item"

    def looks_of(self, waits: SpinWait, seconds: float) -> int:
        self.looks, self.arrives = 0, self.now + seconds
        assert waits.wait(self.is_there, self.take) == "item"
        return self.looks


def test_a_wait_is_spent_awake_if_the_one_before_was_short() -> None:
    clock = Clock()
    waits = SpinWait(True, on_battery=lambda: False, clock=clock)
    looks = [clock.looks_of(waits, seconds) for seconds in (0.01, 0.01, 5.0, 0.01, 0.01)]
    assert looks[0] == looks[3] == 1  # is it there already?
    assert looks[1] == looks[4] == pytest.approx(10, abs=2)
    assert looks[2] == pytest.approx(50, abs=2)  # and then it sleeps


def test_nothing_is_spent_on_battery_or_where_it_is_not_wanted() -> None:
    for waits in (
        SpinWait(True, on_battery=lambda: True, clock=(clock := Clock())),
        SpinWait(False, on_battery=lambda: False, clock=clock),
    ):
        assert [clock.looks_of(waits, 0.01) for _ in range(4)] == [1] * 4


def test_it_is_noticed_when_the_plug_is_pulled() -> None:
    clock, on_battery = Clock(), False
    waits = SpinWait(True, on_battery=lambda: on_battery, clock=clock)
    assert [clock.looks_of(waits, 0.01) > 1 for _ in range(3)] == [False, True, True]
    on_battery = True
    clock.now += 60
    assert [clock.looks_of(waits, 0.01) > 1 for _ in range(3)] == [True, False, False]


def test_the_thread_that_brings_the_item_gets_to_run() -> None:
    items: SimpleQueue[int] = SimpleQueue()
    waits = SpinWait(True, on_battery=lambda: False)

    def bring() -> None:
        for number in range(100):
            sleep(0.002)
            items.put(number)

    threading.Thread(target=bring).start()
    assert [waits.wait(lambda: not items.empty(), items.get) for _ in range(100)] == list(range(100))
