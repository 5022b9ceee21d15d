"""The app around the panes, against a head over real HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, ContentSwitcher, Footer, Input
from told_head import ToldHead, fleet_state, told_head

from shards.errors import PackageError
from tui.app import EdgeAgentApp
from tui.dialogs.choice import ChoiceDialog
from tui.dialogs.connect import ConnectDialog
from tui.dialogs.help_dialog import HelpDialog
from tui.dialogs.key_dialog import KeyDialog
from tui.dialogs.start_head import StartHeadDialog
from tui.heads import FoundHead, StartedHead, Surroundings
from tui.top_bar import Summary

NOWHERE = "http://127.0.0.1:1"


async def until(pilot: Pilot[StartedHead | None], is_so: Callable[[], object]) -> None:
    """Wait for something; a test's own limit ends it."""
    while not is_so():
        await pilot.pause(0.02)


async def press(pilot: Pilot[StartedHead | None], button: str) -> None:
    """Press a button of the dialog that is open, wherever it is drawn."""
    await until(pilot, lambda: pilot.app.screen.query(button))
    pilot.app.screen.query_one(button, Button).press()
    await pilot.pause()


def line(app: EdgeAgentApp) -> str:
    """The right part of the first line."""
    return app.query_one(Summary).render().plain


def on_screen(app: EdgeAgentApp) -> str:
    """All that is drawn."""
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())


def texts_in(folder: Path) -> list[str]:
    """All that is in its files."""
    return [file.read_text("utf-8") for file in folder.rglob("*") if file.is_file()]


async def test_it_connects_to_the_head_it_is_given(head: ToldHead, tmp_path: Path) -> None:
    app = EdgeAgentApp(tmp_path, head.url)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "connected" in line(app) and "SmolLM2-135M" in line(app))
        assert "tok/s" in line(app)
        assert urlsplit(head.url).netloc in line(app)


async def test_tabs_by_key_and_mouse(head: ToldHead, tmp_path: Path) -> None:
    app = EdgeAgentApp(tmp_path, head.url)
    async with app.run_test(size=(80, 24)) as pilot:
        switcher = app.query_one(ContentSwitcher)
        assert switcher.current == "chat"
        await until(pilot, lambda: app.focused is not None)
        before = app.focused
        await pilot.press("f3")
        assert switcher.current == "fleet"
        assert app.query_one("#tab-fleet").has_class("-active")
        await until(pilot, lambda: app.focused is not before)
        await pilot.click("#tab-chat")
        assert switcher.current == "chat"
        await until(pilot, lambda: app.focused is before)


async def test_it_begins_on_the_tab_it_is_told(head: ToldHead, tmp_path: Path) -> None:
    app = EdgeAgentApp(tmp_path, head.url, tab="fleet")
    async with app.run_test(size=(80, 24)):
        assert app.query_one(ContentSwitcher).current == "fleet"


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (140, 45)])
async def test_every_part_of_the_frame_is_there_at_every_size(
    head: ToldHead, tmp_path: Path, size: tuple[int, int]
) -> None:
    app = EdgeAgentApp(tmp_path, head.url)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "connected" in line(app))
        await pilot.pause()
        rows = on_screen(app).splitlines()
        assert "Chat F2" in rows[0] and "Fleet F3" in rows[0] and "● connected" in rows[0]
        assert "^p" in rows[-1]
        assert app.query_one(Footer).region.bottom == size[1]


async def test_head_gone_and_back(tmp_path: Path) -> None:
    with ExitStack() as first, ExitStack() as second:
        head = first.enter_context(told_head())
        app = EdgeAgentApp(tmp_path, head.url)
        async with app.run_test(size=(100, 30)) as pilot:
            await until(pilot, lambda: "connected" in line(app))
            first.close()
            await until(pilot, lambda: "gone" in line(app))
            second.enter_context(told_head(urlsplit(head.url).port or 0))
            await until(pilot, lambda: "connected" in line(app))


@pytest.mark.parametrize("is_dialog_closed", [False, True])
async def test_a_head_that_comes_up_here_is_taken(tmp_path: Path, is_dialog_closed: bool) -> None:
    with ExitStack() as stack:
        with told_head() as other:
            url = other.url
        app = EdgeAgentApp(tmp_path, surroundings=Surroundings(url))
        async with app.run_test(size=(100, 30)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, ConnectDialog))
            if is_dialog_closed:
                await pilot.press("escape")
                await until(pilot, lambda: "no head" in line(app))
            stack.enter_context(told_head(urlsplit(url).port or 0))
            await until(pilot, lambda: "connected" in line(app))
            assert not app.screen.is_modal


async def test_a_head_that_wants_a_key(head: ToldHead, tmp_path: Path) -> None:
    head.key = "s3cret"
    app = EdgeAgentApp(tmp_path, head.url)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, KeyDialog))
        assert "wants a key" in line(app)
        await pilot.press("enter")  # nothing was typed
        assert isinstance(app.screen, KeyDialog)
        await pilot.press(*"wrong", "enter")
        await until(pilot, lambda: isinstance(app.screen, KeyDialog) and not app.screen.query_one(Input).value)
        await pilot.press(*"s3cret")
        assert "s3cret" not in on_screen(app)
        await pilot.press("enter")
        await until(pilot, lambda: "connected" in line(app))
    assert not any("s3cret" in text for text in texts_in(tmp_path))


async def test_the_key_that_the_surroundings_know(head: ToldHead, tmp_path: Path) -> None:
    head.key = "s3cret"
    app = EdgeAgentApp(tmp_path, head.url, surroundings=Surroundings(key_for=lambda url: "s3cret"))
    async with app.run_test() as pilot:
        await until(pilot, lambda: "connected" in line(app))


async def test_a_head_at_the_usual_place_is_not_looked_for(head: ToldHead, tmp_path: Path) -> None:
    looked: list[bool] = []
    around = Surroundings(usual_url=head.url, find=lambda: looked.append(True) or ())
    app = EdgeAgentApp(tmp_path, surroundings=around)
    async with app.run_test() as pilot:
        await until(pilot, lambda: "connected" in line(app))
    assert not looked


async def test_a_head_found_on_this_pc_is_taken(head: ToldHead, tmp_path: Path) -> None:
    found = (FoundHead("elsewhere", urls=("http://192.0.2.1:8114",)), FoundHead("home", urls=(NOWHERE, head.url)))
    app = EdgeAgentApp(tmp_path, surroundings=Surroundings(NOWHERE, lambda: found))
    async with app.run_test() as pilot:
        await until(pilot, lambda: "connected" in line(app))


async def test_heads_elsewhere_are_offered_and_nothing_is_sent_to_them_before(tmp_path: Path) -> None:
    found = (
        FoundHead("[b]closed[/b]"),
        FoundHead("home\x1b[31m", version="0.1.0", urls=("http://192.0.2.1:8114", "http://192.0.2.2:8114")),
    )
    app = EdgeAgentApp(tmp_path, surroundings=Surroundings(NOWHERE, lambda: found))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, ConnectDialog))
        await pilot.pause()
        shown = on_screen(app)
        assert "http://192.0.2.1:8114" in shown
        assert "[b]closed[/b]" in shown and "serve --host" in shown
        assert "\x1b" not in shown
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, ConnectDialog))
        assert not app._clients


async def test_an_address_is_typed(head: ToldHead, tmp_path: Path) -> None:
    app = EdgeAgentApp(tmp_path, surroundings=Surroundings(NOWHERE))
    async with app.run_test(size=(60, 20)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, ConnectDialog))
        await pilot.press(*"ftp://x", "enter")
        await pilot.pause()
        assert "not an address" in on_screen(app)
        app.screen.query_one(Input).value = urlsplit(head.url).netloc
        await pilot.press("enter")
        await until(pilot, lambda: "connected" in line(app))
    # and the next time it is tried by itself
    again = EdgeAgentApp(tmp_path, surroundings=Surroundings(NOWHERE))
    async with again.run_test() as pilot:
        await until(pilot, lambda: "connected" in line(again))


async def test_another_head_by_key(head: ToldHead, tmp_path: Path) -> None:
    with told_head() as other:
        other.state = fleet_state(model={"name": "other-model", "layers": 2, "context_length": 64})
        found = (FoundHead("other", urls=(NOWHERE, other.url)),)
        app = EdgeAgentApp(tmp_path, head.url, surroundings=Surroundings(NOWHERE, lambda: found))
        async with app.run_test(size=(100, 30)) as pilot:
            await until(pilot, lambda: "SmolLM2" in line(app))
            await pilot.press("ctrl+k")
            await until(pilot, lambda: isinstance(app.screen, ConnectDialog) and "other" in on_screen(app))
            await pilot.press("enter")
            await until(pilot, lambda: "other-model" in line(app))


async def test_help_lists_the_keys_of_all_parts(head: ToldHead, tmp_path: Path) -> None:
    app = EdgeAgentApp(tmp_path, head.url)
    async with app.run_test(size=(100, 100)) as pilot:
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(app.screen, HelpDialog))
        await pilot.pause()
        shown = on_screen(app)
        for words in ("Everywhere", "Connect to another head", "^q", "f3", "Command palette", "Chat", "Fleet"):
            assert words in shown
        await pilot.press("ctrl+k", "f3")  # the dialog is to be closed first
        assert isinstance(app.screen, HelpDialog)
        await pilot.press("escape")
        assert not app.screen.is_modal


async def test_the_palette_does_what_a_key_does(head: ToldHead, tmp_path: Path) -> None:
    app = EdgeAgentApp(tmp_path, head.url)
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.press("ctrl+p")
        await pilot.press(*"second tab")
        await until(pilot, lambda: "the second tab" in on_screen(app))
        await pilot.press("enter")
        await until(pilot, lambda: app.query_one(ContentSwitcher).current == "fleet")


async def test_the_theme_is_remembered(head: ToldHead, tmp_path: Path) -> None:
    app = EdgeAgentApp(tmp_path, head.url)
    async with app.run_test() as pilot:
        assert app.current_theme.dark
        app.action_toggle_dark()
        await until(pilot, lambda: any("light" in text for text in texts_in(tmp_path)))
    again = EdgeAgentApp(tmp_path, head.url)
    async with again.run_test():
        assert not again.current_theme.dark


class Started:
    """A head that was started, as far as anybody can tell."""

    process = 4711

    def __init__(self, head: ToldHead) -> None:
        self.url, self.lines, self.runs, self.was_stopped = head.url, ["loads [b]layers[/b]\x1b[2J"], True, False

    def is_running(self) -> bool:
        return self.runs

    def log(self) -> list[str]:
        return list(self.lines)

    def stop(self) -> None:
        self.was_stopped, self.runs = True, False


class FakeStarter:
    """Starts nothing."""

    def __init__(self, head: ToldHead) -> None:
        self.head, self.asked = Started(head), threading.Event()

    def packages(self) -> list[Path]:
        return [Path("models/[b]smol")]

    def start(self, package: Path) -> Started:
        if package.name == "nowhere":
            raise PackageError("there is no manifest here", where=str(package))
        self.asked.set()
        return self.head


def loading(head: ToldHead) -> None:
    """It answers, and has no model yet."""
    head.state = fleet_state(chains=[])


@pytest.mark.parametrize(("key", "is_stopped"), [("enter", True), ("right", False)])
async def test_a_head_is_started_and_asked_about_in_the_end(
    head: ToldHead, tmp_path: Path, key: str, is_stopped: bool
) -> None:
    loading(head)
    starter = FakeStarter(head)
    app = EdgeAgentApp(tmp_path, surroundings=Surroundings(NOWHERE, starter=starter))
    async with app.run_test(size=(80, 30)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, ConnectDialog))
        await press(pilot, "#start")
        await until(pilot, lambda: isinstance(app.screen, StartHeadDialog) and "[b]smol" in on_screen(app))
        app.screen.query_one(Input).value = "nowhere"
        await press(pilot, "#start")
        await until(pilot, lambda: "no manifest" in on_screen(app))
        app.screen.query_one(Input).value = "models/smol"
        await press(pilot, "#start")
        await until(pilot, lambda: "loads [b]layers[/b]" in on_screen(app))
        assert "\x1b" not in on_screen(app)
        head.state = fleet_state()
        await until(pilot, lambda: "connected" in line(app))
        await pilot.press("ctrl+q")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press("escape")  # not yet
        await until(pilot, lambda: not app.screen.is_modal)
        await pilot.press("ctrl+q")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press(*((key,) if key == "enter" else (key, "enter")))
        await until(pilot, lambda: not app.is_running)
    assert starter.head.was_stopped is is_stopped
    assert app.return_value is (None if is_stopped else starter.head)


async def test_a_head_that_ends_while_it_loads_says_why(head: ToldHead, tmp_path: Path) -> None:
    loading(head)
    starter = FakeStarter(head)
    app = EdgeAgentApp(tmp_path, surroundings=Surroundings(NOWHERE, starter=starter))
    async with app.run_test(size=(80, 30)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, ConnectDialog))
        await press(pilot, "#start")
        await until(pilot, lambda: isinstance(app.screen, StartHeadDialog))
        app.screen.query_one(Input).value = "models/smol"
        await press(pilot, "#start")
        await asyncio.to_thread(starter.asked.wait)
        starter.head.lines.append("error: no memory")
        starter.head.runs = False
        await until(pilot, lambda: "error: no memory" in on_screen(app) and "It ended" in on_screen(app))
        await pilot.press("escape")
        await until(pilot, lambda: "no head" in line(app))


async def test_a_head_that_loads_can_be_ended(head: ToldHead, tmp_path: Path) -> None:
    loading(head)
    starter = FakeStarter(head)
    app = EdgeAgentApp(tmp_path, surroundings=Surroundings(NOWHERE, starter=starter))
    async with app.run_test(size=(80, 30)) as pilot:
        await until(pilot, lambda: isinstance(app.screen, ConnectDialog))
        await press(pilot, "#start")
        await until(pilot, lambda: isinstance(app.screen, StartHeadDialog))
        await until(pilot, lambda: "[b]smol" in on_screen(app))
        await pilot.press("enter")
        await until(pilot, lambda: "loads [b]layers[/b]" in on_screen(app))
        await press(pilot, "#cancel")
        await until(pilot, lambda: not isinstance(app.screen, StartHeadDialog))
    assert starter.head.was_stopped
