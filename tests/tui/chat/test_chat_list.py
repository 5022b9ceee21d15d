"""The list of conversations beside the open one, and what a new one begins with."""

import asyncio
from pathlib import Path

from scripted_chat import ChatApp, Scripted, ask, end, until
from textual.pilot import Pilot

from tui.chat.chat_pane import ChatPane
from tui.chat.conversation import Conversation
from tui.chat.settings import BEGINNING, Settings
from tui.chat.sidebar import Sidebar
from tui.chat.store import ConversationStore


async def shown(pilot: Pilot[None]) -> tuple[bool, bool]:
    """Whether the list, and the conversation, are on the screen."""
    await pilot.pause()
    pane = pilot.app.query_one(ChatPane)
    return pane.query_one(Sidebar).display, pane.query_one("#desk").display


async def test_a_window_that_gets_narrow_shows_the_conversation_whatever_was_wanted(tmp_path: Path) -> None:
    app = ChatApp(tmp_path, Scripted())
    async with app.run_test(size=(120, 30)) as pilot:
        assert await shown(pilot) == (True, True)
        await pilot.press("ctrl+b", "ctrl+b")
        assert await shown(pilot) == (True, True)
        await pilot.resize_terminal(80, 24)
        assert await shown(pilot) == (False, True)
        await pilot.press("ctrl+b")
        assert await shown(pilot) == (True, False)
        await pilot.press("escape")
        assert await shown(pilot) == (False, True)
        await pilot.press(*"typed")
        assert app.typed == "typed"


async def test_a_new_conversation_goes_on_with_the_settings_of_the_one_before(tmp_path: Path) -> None:
    store, cool = ConversationStore(tmp_path), Settings(temperature=0.1)
    before = Conversation(settings=cool)
    before.ask("hi", now=1.0)
    store.save_now(before)
    head = Scripted(["one", end()], ["two", end()])
    app = ChatApp(tmp_path, head)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.pane._desk.conversation.settings == cool)
        await pilot.press(*"one", "enter", "ctrl+n", *"two", "enter")
        await until(pilot, lambda: len(head.asked) == 2)
    assert [settings for _, settings in head.asked] == [cool.as_request()] * 2


async def test_the_first_conversation_is_sampled_with_care(tmp_path: Path) -> None:
    head = Scripted(["one", end()])
    app = ChatApp(tmp_path, head)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press(*"one", "enter")
        await until(pilot, lambda: bool(head.asked))
    assert head.asked[0][1] == BEGINNING.as_request() == {"temperature": 0.6, "top_p": 0.95, "min_p": 0.05}


async def test_a_small_screen_has_no_list_until_it_is_asked_for(tmp_path: Path) -> None:
    app = ChatApp(tmp_path, Scripted(["Hello", end()]))
    async with app.run_test(size=(60, 20)) as pilot:
        assert not app.query_one("Sidebar").display
        await ask(pilot, "hi")
        await until(pilot, lambda: "tok/s" in app.said)
        await pilot.press("ctrl+b")
        assert app.query_one("Sidebar").display
        assert not app.query_one("ConversationDesk").display
        await pilot.press("ctrl+b")
        assert app.query_one("ConversationDesk").display
        assert app.query_one("Composer").area.has_focus
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: app.query_one("ConversationDesk").display)


async def test_deleting_the_open_conversation_stops_its_answer(tmp_path: Path) -> None:
    head = Scripted(["Half", asyncio.Event()])
    app = ChatApp(tmp_path, head)
    async with app.run_test(size=(100, 40)) as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: "Half" in app.said and len(ConversationStore(tmp_path).entries()) == 1)
        await pilot.press("ctrl+b", "ctrl+b")
        await until(pilot, lambda: app.query_one("Sidebar").query_one("OptionList").option_count == 1)
        await pilot.press("delete")
        await until(pilot, lambda: head.closed == 1)
        await until(pilot, lambda: app.said == "")
    assert ConversationStore(tmp_path).entries() == []


async def test_a_search_leads_to_the_question(tmp_path: Path) -> None:
    head = Scripted(["answer\n\n" * 30, end()])
    app = ChatApp(tmp_path, head)
    async with app.run_test(size=(100, 20)) as pilot:
        await ask(pilot, "first zebra")
        await until(pilot, lambda: "tok/s ·" in app.said)
        await ask(pilot, "second")
        await until(pilot, lambda: app.said.count("tok/s ·") == 2)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: app.said == "")
        await pilot.press("ctrl+f", *"zebra")
        await until(pilot, lambda: "1 found" in str(app.query_one("Sidebar .note").visual))
        await pilot.press("enter", "enter")
        await until(pilot, lambda: "first zebra" in app.said)
        await until(pilot, lambda: app.transcript.scroll_offset.y == 0)
