"""A head that says what a test wants, and an app with nothing but the chat in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

from textual.app import App, ComposeResult
from textual.pilot import Pilot

from tui.chat.chat_pane import ChatPane
from tui.chat.store import ConversationStore
from tui.chat.transcript import Transcript
from tui.client.head_client import End, HeadClient, Message, Piece, StagePart, Timings
from tui.client.history import History
from tui.client.state import Event, Fleet, Model
from tui.client.watch import Connection, FleetChanged

TIMINGS = Timings(180.0, 24.1, (StagePart("pc-1", 20.0, 1.0), StagePart("pc-2", 12.0, 2.0)), 6.0, 2.0, 0.61)
UP = Connection("up", "http://127.0.0.1:8114")
GONE = Connection("gone", "http://127.0.0.1:8114", "connection refused")
PATIENCE_SECONDS = 120.0


class Scripted(HeadClient):
    """Says one script after the other, then the last again.

    A script's items: a text is a piece, an Event is waited for, an exception is raised, an End ends.
    """

    def __init__(self, *scripts: Sequence[object]) -> None:
        self.scripts = list(scripts)
        self.asked: list[tuple[list[Message], dict[str, Any]]] = []
        self.closed = 0
        self.counted: list[list[Message]] = []
        self.tokens: int | Exception = 42
        self.may_count = asyncio.Event()
        self.may_count.set()

    async def chat(self, messages: Sequence[Message], settings: dict[str, Any]) -> AsyncGenerator[Piece | End]:
        self.asked.append((list(messages), settings))
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        try:
            for item in script:
                match item:
                    case str():
                        yield Piece(item)
                    case asyncio.Event():
                        await item.wait()
                    case Exception():
                        raise item
                    case End():
                        yield item
                    case _:
                        raise TypeError(item)
        finally:
            self.closed += 1

    async def count(self, messages: Sequence[Message]) -> int:
        await self.may_count.wait()
        self.counted.append(list(messages))
        if isinstance(self.tokens, Exception):
            raise self.tokens
        return self.tokens


def end(reason: str = "stop", tokens: int = 3, prompt: int = 10, timings: Timings | None = TIMINGS) -> End:
    return End(reason, prompt, 4, tokens, timings)


def fleet(*news: str, context: int = 4096) -> FleetChanged:
    state = Fleet(model=Model(name="SmolLM2", layers=30, context_length=context))
    return FleetChanged(state, History(), tuple(Event(time=0.0, what=what) for what in news))


class ChatApp(App[None]):
    """The chat alone."""

    def __init__(self, folder: Path, client: HeadClient | None, connection: Connection = UP) -> None:
        super().__init__()
        self.pane = ChatPane(ConversationStore(folder))
        self._client, self._connection = client, connection
        self.clipboard_texts: list[str] = []

    def compose(self) -> ComposeResult:
        yield self.pane

    def on_mount(self) -> None:
        self.pane.client = self._client
        self.pane.show_connection(self._connection)
        self.pane.show_fleet(fleet())
        self.pane.focus()

    def copy_to_clipboard(self, text: str) -> None:
        self.clipboard_texts.append(text)

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def said(self) -> str:
        """All rows of the transcript."""
        return "\n".join(row.content.plain for view in self.transcript.views for row in view.rows)

    @property
    def notice(self) -> str:
        return str(self.query_one("#notice").visual)

    @property
    def typed(self) -> str:
        return self.query_one("Composer").text

    @property
    def state_line(self) -> str:
        return self.query_one("StateView").line.content().plain


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Wait for something to come true."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await pilot.pause(0.01)


async def ask(pilot: Pilot[None], text: str) -> None:
    """Type a question and send it."""
    await pilot.press(*text)
    await pilot.press("enter")
