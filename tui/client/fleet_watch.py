"""Asks the head how it is, over and over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from textual.message import Message

from tui.client.errors import HeadError, KeyWantedError
from tui.client.head_client import HeadClient
from tui.client.history import History
from tui.client.plain import one_line
from tui.client.state import Event, Fleet
from tui.client.watch import Connection, ConnectionChanged, FleetChanged

INTERVAL = 0.5
"""Seconds between two questions."""
_LONGEST_PAUSE = 3.0
"""Seconds between two questions to a head that does not answer."""


class FleetWatch:
    """Tells what is new of one head. Goes on when the head is gone, and finds it again by itself.

    Args:
        client: The head.
        tell: Takes ConnectionChanged and FleetChanged; must not block.
    """

    def __init__(self, client: HeadClient, tell: Callable[[Message], object]) -> None:
        self._client, self._tell = client, tell
        self._history = History()
        self._told: Connection | None = None
        self._before: frozenset[Event] | None = None
        self._hurry = asyncio.Event()

    async def run(self) -> None:
        """Ask until cancelled."""
        pause = INTERVAL
        while True:
            began = monotonic()
            connection = await self._look()
            if connection != self._told:
                self._told = connection
                self._tell(ConnectionChanged(connection))
            pause = INTERVAL if connection.state == "up" else min(2 * pause, _LONGEST_PAUSE)
            self._hurry.clear()
            try:
                await asyncio.wait_for(self._hurry.wait(), max(0.0, began + pause - monotonic()))
            except TimeoutError:
                continue
            pause = INTERVAL

    def retry(self) -> None:
        """Ask at once, and tell the outcome even if it is as before: there is a new key, or somebody is impatient."""
        self._told = None
        self._hurry.set()

    async def _look(self) -> Connection:
        url = self._client.url
        try:
            fleet = await self._client.fleet()
        except KeyWantedError as error:
            return Connection("locked", url, one_line(error.what))
        except HeadError as error:
            return Connection("gone", url, one_line(error.what))
        self._take(fleet, url)
        return Connection("up", url)

    def _take(self, fleet: Fleet, url: str) -> None:
        up = Connection("up", url)
        if self._told != up:  # first that it is there, then what it says
            self._told = up
            self._tell(ConnectionChanged(up))
        self._history.add(fleet, monotonic())
        news = () if self._before is None else tuple(event for event in fleet.events if event not in self._before)
        self._before = frozenset(fleet.events)
        self._tell(FleetChanged(fleet, self._history, news))
