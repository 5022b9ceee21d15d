"""What tests of the control connection share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic, sleep

import pytest
from control_fleet import PATIENCE, ControlFleet


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(("control", "doorman"))}


@pytest.fixture
def empty() -> Iterator[ControlFleet]:
    before = threads()
    fleet = ControlFleet()
    yield fleet
    fleet.close()
    until = monotonic() + PATIENCE
    while threads() - before and monotonic() < until:  # a doorman ends a moment after its context
        sleep(0.01)
    assert threads() <= before


@pytest.fixture
def fleet(empty: ControlFleet) -> ControlFleet:
    empty.start()
    return empty
