"""Waiting for the next step without letting the processor fall asleep."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter, sleep
from typing import TypeVar

from shards.power import is_on_battery

_LONGEST_SECONDS = 0.05
"""Waits that take longer are slept."""
_POWER_SECONDS = 30.0
"""So often it is looked what the computer runs on."""

_Item = TypeVar("_Item")


class SpinWait:
    """How a thread waits: awake where that pays.

    A stage waits while the others compute, and a processor that slept for so long computes slower at first. So a wait
    that will be short, as the one before it was, is spent awake. Other threads that want the processor get it at once.
    On battery nothing is spent on this.

    Args:
        enabled: False: every wait is slept.
        on_battery: Whether the computer runs on its battery now.
        clock: Seconds.
    """

    def __init__(
        self,
        enabled: bool,
        *,
        on_battery: Callable[[], bool] = is_on_battery,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._enabled, self._on_battery, self._clock = enabled, on_battery, clock
        self._spins = self._is_plugged_in = False
        self._looked = float("-inf")

    def wait(self, is_there: Callable[[], bool], take: Callable[[], _Item]) -> _Item:
        """What `take` gives, which would sleep until it `is_there`."""
        if is_there():
            return take()
        began = self._clock()
        if self._spins:
            while not is_there() and self._clock() - began < _LONGEST_SECONDS:
                give_way()
        item = take()
        now = self._clock()
        self._spins = now - began < _LONGEST_SECONDS and self._may_spin(now)
        return item

    def _may_spin(self, now: float) -> bool:
        if self._enabled and now - self._looked >= _POWER_SECONDS:
            self._looked, self._is_plugged_in = now, not self._on_battery()
        return self._is_plugged_in


def give_way() -> None:
    """Let other threads that want the processor, or the interpreter, have it first."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()
    else:
        sleep(0)
