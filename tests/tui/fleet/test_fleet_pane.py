from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from dialog_head import NASTY, shown
from fleet_states import history_of, key, local, mixed, node, simple
from textual.app import App, ComposeResult
from textual.widgets import ContentSwitcher, Footer, Static

from tui.client.errors import HeadGoneError, RefusedError
from tui.client.head_client import HeadClient
from tui.client.state import Event, Fleet, PendingNode
from tui.client.watch import Connection, FleetChanged
from tui.dialogs.choice import ConfirmDialog
from tui.fleet.fleet_pane import FleetPane
from tui.fleet.map_view import MapView
from tui.fleet.node_dialog import NodeDialog
from tui.fleet.plan_dialog import PlanDialog

UP = Connection("up", "http://127.0.0.1:8114")


class _Client(HeadClient):
    """Notes what it is asked."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(UP.url)
        self.asked: list[tuple[str, str]] = []
        self.error = error

    async def cancel(self, request: str) -> None:
        self._note("cancel", request)

    async def approve(self, code: str) -> str:
        return self._note("approve", code)

    async def refuse(self, code: str) -> str:
        return self._note("refuse", code)

    async def forget(self, node: str) -> str:
        return self._note("forget", node)

    def _note(self, what: str, about: str) -> str:
        if self.error:
            raise self.error
        self.asked.append((what, about))
        return "pc-[b]6"


async def _until(app: App[None], words: str) -> None:
    """Wait for words: what is said to the keeper comes a moment later."""
    end = time.monotonic() + 60
    while words not in shown(app):
        assert time.monotonic() < end, f"{words!r} is not in\n{shown(app)}"
        await asyncio.sleep(0.02)


class _App(App[None]):
    CSS = "ContentSwitcher { height: 1fr; }"

    def __init__(self, client: HeadClient | None = None) -> None:
        super().__init__()
        self.client = client

    def compose(self) -> ComposeResult:
        with ContentSwitcher(initial="fleet"):
            pane = FleetPane()
            pane.id, pane.client = "fleet", self.client
            yield pane
            yield Static("another tab", id="other")
        yield Footer(compact=True)

    @property
    def pane(self) -> FleetPane:
        return self.query_one(FleetPane)

    def show(self, state: Fleet, connection: Connection = UP) -> None:
        self.pane.show_connection(connection)
        self.pane.show_fleet(FleetChanged(state, history_of(state), ()))


@pytest.mark.parametrize("size", [(80, 24), (60, 20)])
async def test_small_screens_show_the_essentials(size: tuple[int, int]) -> None:
    app = _App()
    async with app.run_test(size=size, notifications=True) as pilot:
        app.show(simple(3))
        await pilot.pause()
        text = shown(app)
        for words in ("tok/s", "queue", "pc-1", "pc-2", "pc-3", "serving", "requests 2, 1 waiting", "events"):
            assert words in text, words


async def test_a_large_screen_shows_everything_at_once() -> None:
    app = _App()
    async with app.run_test(size=(140, 45), notifications=True) as pilot:
        app.show(mixed().model_copy(update={"events": (Event(time=0.0, what="pc-9 has left"),)}))
        await pilot.pause()
        text = shown(app)
        for words in (
            "tok/s",
            "use pc-1",
            "fetching 42 %",
            "waiting to be let in 1",
            "AB-CD",
            "pc-9 has left",
            "decode",
        ):
            assert words in text, words


async def test_sections_take_turns_where_there_is_little_room() -> None:
    app = _App()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        app.show(mixed().model_copy(update={"events": (Event(time=0.0, what="pc-9 has left"),)}))
        app.pane.focus()
        await pilot.pause()
        seen = []
        for _ in range(4):
            text = shown(app)
            seen.append(next(word for word in ("decode", "AB-CD", "pc-9 has left") if word in text))
            await pilot.press("s")
            await pilot.pause()
        assert seen == ["decode", "AB-CD", "pc-9 has left", "decode"]
        await pilot.click(".of-requests")
        await pilot.pause()
        assert "decode" in shown(app)


async def test_a_node_is_let_in_after_a_look_at_its_code() -> None:
    client = _Client()
    app = _App(client)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        app.show(mixed())
        app.pane.focus()
        await pilot.pause()
        assert "pc-6 waits to be let in" in shown(app)
        await pilot.press("a")
        await pilot.pause()
        assert isinstance(app.screen, ConfirmDialog) and "AB-CD" in shown(app)
        await pilot.press("enter")
        await pilot.pause()
        assert client.asked == [("approve", "AB-CD")]
        await _until(app, "pc-[b]6 is in")


async def test_keys_that_are_quicker_than_the_dialog_ask_once() -> None:
    client = _Client()
    app = _App(client)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        app.show(mixed())
        await pilot.pause()
        for _ in range(3):
            app.pane.action_approve()
        await pilot.pause()
        await pilot.press("n")
        await pilot.pause()
        assert not app.screen.is_modal and not client.asked


async def test_a_node_that_is_not_let_in() -> None:
    client = _Client()
    app = _App(client)
    async with app.run_test(size=(140, 45), notifications=True) as pilot:
        app.show(mixed())
        app.pane.focus()
        await pilot.pause()
        await pilot.press("a", "n")
        await pilot.pause()
        assert not client.asked
        await pilot.press("x")
        await pilot.pause()
        assert client.asked == [("refuse", "AB-CD")]


async def test_an_answer_is_ended_after_a_question() -> None:
    client = _Client()
    app = _App(client)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        app.show(simple(2, requests=1))
        app.pane.focus()
        await pilot.pause()
        await pilot.press("c")
        await pilot.pause()
        assert "End the answer to somebody?" in shown(app)
        await pilot.press("enter")
        await pilot.pause()
        assert client.asked == [("cancel", "chatcmpl-00000000")]


async def test_a_node_is_shut_out_after_a_question_but_not_the_head() -> None:
    client = _Client()
    app = _App(client)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        app.show(simple(2))
        app.pane.focus()
        await pilot.pause()
        await pilot.press("d")
        await pilot.pause()
        assert not isinstance(app.screen, ConfirmDialog)  # pc-1 is the head
        await pilot.press("right", "d")
        await pilot.pause()
        assert "Shut out pc-2?" in shown(app)
        await pilot.press("y")
        await pilot.pause()
        assert client.asked == [("forget", key(2))]


@pytest.mark.parametrize("error", [RefusedError("no [b]such[/b] code\x1b[2J"), HeadGoneError("nobody answers")])
async def test_what_goes_wrong_is_said(error: Exception) -> None:
    app = _App(_Client(error))
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        app.show(mixed())
        app.pane.focus()
        await pilot.pause()
        await pilot.press("x")
        await pilot.pause()
        words = "no [b]such[/b] code" if isinstance(error, RefusedError) else "nobody answers"
        await _until(app, words)


async def test_dialogs_open() -> None:
    app = _App(_Client())
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        app.show(simple(2))
        app.pane.focus()
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, NodeDialog)
        await pilot.press("escape")
        await pilot.pause()
        await pilot.press("p")
        await pilot.pause()
        assert isinstance(app.screen, PlanDialog)


async def test_without_a_fleet_the_stages_of_this_pc_are_shown_and_have_no_details() -> None:
    app = _App(_Client())
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        app.show(local())
        app.pane.focus()
        await pilot.pause()
        assert "stage 2" in shown(app)
        await pilot.press("enter")
        await _until(app, "without a fleet")
        assert "Plan" not in shown(app).splitlines()[-1]


async def test_the_footer_offers_what_can_be_done() -> None:
    app = _App()
    async with app.run_test(size=(140, 45), notifications=True) as pilot:
        app.show(simple(2, requests=0))
        app.pane.focus()
        await _until(app, "Plan")
        footer = shown(app).splitlines()[-1]
        assert "Plan" in footer and "Approve" not in footer and "Cancel" not in footer and "Forget" not in footer
        app.show(mixed())
        await pilot.press("right")
        await _until(app, "Forget")
        footer = shown(app).splitlines()[-1]
        assert all(words in footer for words in ("Approve", "Refuse", "Cancel", "Forget", "Plan"))


async def test_before_there_is_a_head() -> None:
    app = _App()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        app.pane.focus()
        await pilot.pause()
        assert "looking for the head" in shown(app)
        await pilot.press("p", "a", "c", "d", "enter", "s", "e")
        await pilot.pause()
        app.pane.show_connection(Connection("locked", UP.url))
        await pilot.pause()
        assert app.is_running


async def test_a_head_that_goes_and_comes_back() -> None:
    app = _App()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        app.show(simple(2))
        app.pane.show_connection(replace(UP, state="gone", why="nobody answers"))
        await pilot.pause()
        assert "the head is gone" in shown(app) and "pc-2" in shown(app)
        assert not app.query_one(MapView).is_animating
        app.show(simple(2))
        await pilot.pause()
        assert "the head is gone" not in shown(app)
        app.pane.show_connection(Connection("looking", "http://127.0.0.1:9"))
        await pilot.pause()
        assert "pc-2" not in shown(app)


async def test_what_comes_while_it_cannot_be_seen_is_shown_later() -> None:
    app = _App()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        app.show(simple(2))
        await pilot.pause()
        app.query_one(ContentSwitcher).current = "other"
        await pilot.pause()
        app.show(simple(3))
        await pilot.pause()
        app.query_one(ContentSwitcher).current = "fleet"
        await pilot.pause()
        await pilot.pause()
        assert "pc-3" in shown(app)


@pytest.mark.parametrize("name", NASTY)
async def test_names_are_text(name: str) -> None:
    state = simple(2).model_copy(
        update={
            "nodes": (node(1), node(2, name=name, problem=name)),
            "pending": (PendingNode(code="AB-1", name=name),),
            "problem": name,
            "waits_for": name,
        }
    )
    app = _App(_Client())
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        app.show(state)
        app.pane.focus()
        await pilot.pause()
        await pilot.press("right", "d")
        await pilot.pause()
        await pilot.press("n", "a")
        await pilot.pause()
        assert "\x1b" not in shown(app) and "\u202e" not in shown(app) and app.is_running
