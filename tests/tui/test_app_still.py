"""The app before a head that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest
from driving import ask, until
from still_head import NOON, StillClient, StillHead, StillWatch

import tui.app
from agent.bench.screen.scene import Scene
from tui.app import EdgeAgentApp
from tui.client.errors import HeadError
from tui.client.head_client import End, Message, Piece


class BreaksOff(StillClient):
    """Says something, and more when it is told to; then it breaks off."""

    def __init__(self, head: StillHead, go_on: asyncio.Event) -> None:
        super().__init__(head)
        self._go_on = go_on

    async def chat(self, messages: Sequence[Message], settings: dict[str, Any]) -> AsyncGenerator[Piece | End]:
        yield Piece("the first words ")
        await self._go_on.wait()
        yield Piece("and the last ones")
        raise HeadError("pc-2 has left")


async def test_what_comes_while_the_chat_is_hidden_is_there_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, go_on = StillHead(Scene(3, since=NOON)), asyncio.Event()
    monkeypatch.setattr(tui.app, "HeadClient", lambda url, key=None: BreaksOff(head, go_on))
    monkeypatch.setattr(tui.app, "FleetWatch", lambda client, tell: StillWatch(head, tell))
    app = EdgeAgentApp(tmp_path, "http://127.0.0.1:8114")
    async with app.run_test(size=(100, 30)) as pilot:
        await until(app, "connected")
        await ask(pilot, "Hello?")
        await until(app, "the first words")
        await pilot.press("f3")
        await until(app, "pc-2")
        go_on.set()
        await pilot.pause(0.2)
        await pilot.press("f2")
        await until(app, "and the last ones")
        await until(app, "pc-2 has left")


@pytest.mark.parametrize("opened", ["f2", "ctrl+p"])
async def test_a_terminal_that_has_no_room_for_anything_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: str
) -> None:
    head = StillHead(Scene(3, since=NOON))
    monkeypatch.setattr(tui.app, "HeadClient", lambda url, key=None: StillClient(head))
    monkeypatch.setattr(tui.app, "FleetWatch", lambda client, tell: StillWatch(head, tell))
    app = EdgeAgentApp(tmp_path, "http://127.0.0.1:8114")
    async with app.run_test(size=(100, 30)) as pilot:
        await until(app, "connected")
        await pilot.press(opened)
        for width, height in ((2, 2), (1, 30), (100, 1), (1, 1)):
            await pilot.resize_terminal(width, height)
            await pilot.pause(0.05)
        await pilot.resize_terminal(100, 30)
        await until(app, "connected")


async def test_the_help_says_where_the_keys_of_the_list_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = StillHead(Scene(3, since=NOON))
    monkeypatch.setattr(tui.app, "HeadClient", lambda url, key=None: StillClient(head))
    monkeypatch.setattr(tui.app, "FleetWatch", lambda client, tell: StillWatch(head, tell))
    app = EdgeAgentApp(tmp_path, "http://127.0.0.1:8114")
    async with app.run_test(size=(100, 60)) as pilot:
        await until(app, "connected")
        await pilot.press("f1")
        help_page = await until(app, "Keys (Esc closes)")
        chat, _, in_list = help_page.partition("Chat, in the list of conversations")
        assert "Undo delete" in in_list
        assert "Undo delete" not in chat
