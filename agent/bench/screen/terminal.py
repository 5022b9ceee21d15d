"""A terminal in memory: the app draws for it as for a real one, and it notes when what came."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable

from textual import events
from textual.drivers.headless_driver import HeadlessDriver

from agent.bench.screen.marked_text import MARK

_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PATIENCE_SECONDS = 60.0


class MemoryTerminal(HeadlessDriver):
    """Takes the very codes that a terminal would get; only the way through the terminal itself is missing."""

    @property
    def is_headless(self) -> bool:
        """No: for a headless driver nothing is rendered."""
        return False

    def start_application_mode(self) -> None:
        """Begin with nothing seen."""
        self.marks: dict[str, float] = {}
        """When each mark was first drawn, in seconds of the performance counter."""
        self.characters = 0
        self._watches: list[tuple[Callable[[str], bool], asyncio.Future[float]]] = []
        super().start_application_mode()

    def write(self, data: str) -> None:
        """Take what is drawn."""
        now = time.perf_counter()
        self.characters += len(data)
        for mark in MARK.findall(data):
            self.marks.setdefault(mark, now)
        for watch in self._watches[:]:
            shows, future = watch
            if shows(data):
                self._watches.remove(watch)
                if not future.done():
                    future.set_result(now)

    async def until(self, shows: Callable[[str], bool], patience: float = _PATIENCE_SECONDS) -> float:
        """When something drawn from now on first fits, in seconds of the performance counter.

        Raises:
            TimeoutError: it did not come.
        """
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._watches.append((shows, future))
        async with asyncio.timeout(patience):
            return await future

    async def answer_time(self, event: events.Event, shows: Callable[[str], bool]) -> float:
        """Seconds from an event, such as a key, to the first thing drawn that fits."""
        waiting = asyncio.create_task(self.until(shows))
        await asyncio.sleep(0)
        began = time.perf_counter()
        self.process_message(event)
        return await waiting - began


def plain(data: str) -> str:
    """What is drawn, without the codes."""
    return _CODES.sub("", data)
