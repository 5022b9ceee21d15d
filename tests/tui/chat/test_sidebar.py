from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from tui.chat.conversation import Conversation
from tui.chat.sidebar import (
    ConversationChosen,
    ConversationDeleted,
    ConversationRenamed,
    NewConversationWanted,
    Sidebar,
    ago,
)
from tui.chat.store import ConversationStore


class Host(App[None]):
    def __init__(self, store: ConversationStore) -> None:
        super().__init__()
        self.store = store
        self.seen: list[Message] = []

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Sidebar(self.store)
            yield Static("the chat")

    def on_conversation_chosen(self, message: ConversationChosen) -> None:
        self.seen.append(message)

    on_conversation_deleted = on_conversation_renamed = on_new_conversation_wanted = on_conversation_chosen


@pytest.fixture
def store(tmp_path: Path) -> ConversationStore:
    store = ConversationStore(tmp_path / "conversations")
    for number, (title, text) in enumerate([("sea", "deep [b]blue"), ("sky", "light"), ("[red]fire", "hot")]):
        conversation = Conversation(title=title)
        conversation.ask(text, now=number + 1.0)
        store.save_now(conversation)
    return store


def shown(app: App[None]) -> list[str]:
    options = app.query_one(OptionList).options
    return [str(option.prompt).splitlines()[0].strip() for option in options]


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        await pilot.pause()
        while not holds():
            await asyncio.sleep(0.01)
            await pilot.pause()


async def test_the_list_is_shown_as_text_and_the_open_one_is_marked(store: ConversationStore) -> None:
    app = Host(store)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: shown(app) == ["[red]fire", "sky", "sea"])
        app.query_one(Sidebar).show_current(store.entries()[1].id)
        await until(pilot, lambda: shown(app) == ["[red]fire", "▶ sky", "sea"])


async def test_a_list_that_is_read_while_the_screen_is_taken_down_does_no_harm(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_read, entries = threading.Event(), store.entries
    monkeypatch.setattr(store, "entries", lambda: is_read.wait(60) and entries())
    app = Host(store)
    async with app.run_test():
        await app.query_one(OptionList).remove()
        is_read.set()
        await app.workers.wait_for_complete()


async def test_keyboard_and_mouse_choose(store: ConversationStore) -> None:
    app = Host(store)
    ids = [entry.id for entry in store.entries()]
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(shown(app)) == 3)
        app.query_one(OptionList).focus()
        await pilot.press("down", "enter")
        await pilot.click(OptionList, offset=(4, 4))
        await pilot.click("#new")
        await pilot.pause()
    assert [message.id for message in app.seen if isinstance(message, ConversationChosen)] == [ids[1], ids[2]]
    assert isinstance(app.seen[-1], NewConversationWanted)


async def test_search_finds_texts_and_says_where(store: ConversationStore) -> None:
    app = Host(store)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(shown(app)) == 3)
        app.query_one(Sidebar).focus_search()
        await pilot.press(*"BLUE")
        await until(pilot, lambda: shown(app) == ["sea"])
        assert "deep [b]blue" in str(app.query_one(OptionList).options[0].prompt)
        await pilot.press("enter", "enter")
        await pilot.pause()
        assert isinstance(app.seen[-1], ConversationChosen) and app.seen[-1].turn == 0
        await pilot.press("slash", *"xyz")
        await until(pilot, lambda: "Nothing has all" in str(app.query_one(".note", Static).content))
        await pilot.press("escape")
        await until(pilot, lambda: len(shown(app)) == 3)
        assert app.query_one(Input).value == ""


async def test_rename(store: ConversationStore) -> None:
    app = Host(store)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(shown(app)) == 3)
        app.query_one(OptionList).focus()
        await pilot.press("r")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        line = app.screen.query_one(Input)
        assert line.value == "[red]fire"
        line.value = "ice"
        await pilot.press("enter")
        await until(pilot, lambda: shown(app)[0] == "ice")
        message = app.seen[-1]
        assert isinstance(message, ConversationRenamed) and message.title == "ice"
        assert store.load(message.id).title == "ice"


async def test_delete_can_be_undone_by_key_and_by_mouse(store: ConversationStore) -> None:
    app = Host(store)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(shown(app)) == 3)
        app.query_one(OptionList).focus()
        await pilot.press("delete")
        await until(pilot, lambda: shown(app) == ["sky", "sea"])
        assert isinstance(app.seen[-1], ConversationDeleted)
        await pilot.click("#delete")
        await until(pilot, lambda: shown(app) == ["sea"])
        await pilot.click("#undo")
        await until(pilot, lambda: shown(app) == ["sky", "sea"])
        app.query_one(OptionList).focus()
        await pilot.press("u")
        await until(pilot, lambda: shown(app) == ["[red]fire", "sky", "sea"])
        assert not app.query_one(".undo").display


async def test_what_cannot_be_read_says_why_and_is_not_opened(store: ConversationStore) -> None:
    (store.folder / "foreign.json").write_text('{"format": 7}', encoding="utf-8")
    app = Host(store)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: shown(app)[0] == "! foreign.json")
        app.query_one(OptionList).focus()
        await pilot.press("home", "enter")
        await until(pilot, lambda: "format 7" in str(app.query_one(".note", Static).content))
    assert app.seen == []


async def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    app = Host(ConversationStore(tmp_path / "file"))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "cannot be listed" in str(app.query_one(".note", Static).content))
    assert app.seen == []


async def test_the_mark_stays_where_it_is_when_the_list_changes(store: ConversationStore) -> None:
    app = Host(store)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(shown(app)) == 3)
        list_ = app.query_one(OptionList)
        list_.highlighted = 1
        fresh = Conversation(title="fresh")
        fresh.ask("x", now=99.0)
        store.save_now(fresh)
        app.query_one(Sidebar).show_current(fresh.id)
        await until(pilot, lambda: len(shown(app)) == 4)
        assert list_.highlighted == 2 and shown(app)[2] == "sky"


async def test_hundreds_are_listed_at_the_smallest_size(store: ConversationStore) -> None:
    for number in range(300):
        conversation = Conversation(title=f"number {number}")
        conversation.ask("x", now=100.0 + number)
        store.save_now(conversation)
    app = Host(store)
    async with app.run_test(size=(60, 20)) as pilot:
        await until(pilot, lambda: len(shown(app)) == 303)
        assert app.query_one("#delete").region.bottom <= 20
        app.query_one(OptionList).focus()
        await pilot.press("end", "enter")
        await pilot.pause()
    assert isinstance(app.seen[-1], ConversationChosen)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "now"), (59, "now"), (60, "1 min ago"), (3600, "1 h ago"), (86_400, "1 day ago"), (200_000, "2 days ago")],
)
def test_ago(seconds: float, text: str) -> None:
    assert ago(seconds) == text
