"""A head that stands still: it always says the same, at once, so that a picture of it is always the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from textual.message import Message as Told

from agent.bench.screen.scene import Scene
from tui.client.head_client import End, HeadClient, Message, Piece
from tui.client.history import History
from tui.client.plan import NodeDetail, Preview
from tui.client.state import Event, Fleet
from tui.client.watch import Connection, ConnectionChanged, FleetChanged

NOON = 1_796_040_000.0
"""30 November 2026, 12:00 UTC."""
SECONDS = 120.0
"""How long its fleet has been there."""


class StillHead:
    """What it says.

    Args:
        scene: Its fleet.
        fleet: What it says of it, if not what the scene says.
        answer: What it answers: texts, the end, or an error; an Event happens in between.
    """

    def __init__(
        self, scene: Scene, fleet: Fleet | None = None, answer: Sequence[str | End | Event | Exception] = ()
    ) -> None:
        self.scene = scene
        self.fleet = fleet or scene.fleet(SECONDS)
        self.answer = answer
        self.is_gone = False
        self.tell: Callable[[Told], object] = lambda _: None
        self.history = History()
        for second in range(int(SECONDS) * 2 + 1):
            self.history.add(scene.fleet(second / 2), second / 2)


class StillClient(HeadClient):
    """Asks it."""

    def __init__(self, head: StillHead) -> None:
        super().__init__("http://127.0.0.1:8114", "key")
        self._head = head

    async def fleet(self) -> Fleet:
        return self._head.fleet

    async def chat(self, messages: Sequence[Message], settings: dict[str, Any]) -> AsyncGenerator[Piece | End]:
        for item in self._head.answer:
            match item:
                case str():
                    yield Piece(item)
                case End():
                    yield item
                case Event():
                    self._head.tell(FleetChanged(self._head.fleet, self._head.history, (item,)))
                    await asyncio.sleep(0.1)  # it is heard of before the answer goes on
                case _:
                    raise item

    async def count(self, messages: Sequence[Message]) -> int:
        return 8 + sum(len(message.content) for message in messages) // 4

    async def plan(self, **changes: Any) -> Preview:
        return self._head.scene.plan({name: value for name, value in changes.items() if value is not None})

    async def node(self, name: str) -> NodeDetail:
        return self._head.scene.detail(name, SECONDS)


class StillWatch:
    """Tells once."""

    def __init__(self, head: StillHead, tell: Callable[[Told], object]) -> None:
        self._head = head
        head.tell = tell

    async def run(self) -> None:
        url = "http://127.0.0.1:8114"
        self._head.tell(ConnectionChanged(Connection("up", url)))
        self._head.tell(FleetChanged(self._head.fleet, self._head.history, ()))
        if self._head.is_gone:
            self._head.tell(ConnectionChanged(Connection("gone", url, "no head answers")))

    def retry(self) -> None:
        """There is nothing new."""
