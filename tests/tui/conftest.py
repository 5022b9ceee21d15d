"""For all tests of the screen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import textual.app
import textual.pilot
from told_head import ToldHead, told_head

_FRAME_SECONDS = 1 / 50
"""A little more than from one drawing to the next."""


async def _wait_for_idle(min_sleep: float = 0.0, max_sleep: float = 0.0) -> None:
    """Wait for the next drawing, and until the event loop has nothing left to do but wait.

    Textual's own waits until the process takes no time of a processor, and a PC that is busy with other things gives it
    none.
    """
    loop = asyncio.get_running_loop()
    await asyncio.sleep(_FRAME_SECONDS)
    while True:
        await asyncio.sleep(0)
        if not loop._ready:  # type: ignore[attr-defined]
            return


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test looks at the screen when what it did has had its effect, however long that took."""
    monkeypatch.setattr(textual.app, "wait_for_idle", _wait_for_idle)
    monkeypatch.setattr(textual.pilot, "wait_for_idle", _wait_for_idle)


@pytest.fixture
def head() -> Iterator[ToldHead]:
    """A head that a test tells what to answer."""
    with told_head() as running:
        yield running
