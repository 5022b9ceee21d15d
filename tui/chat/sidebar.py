"""The list of conversations, with search, rename and delete."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import ClassVar

from textual import on
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.css.query import NoMatches
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from shards.errors import EdgeAgentError
from tui.chat.store import ConversationStore, Deleted, Entry
from tui.client.plain import clean, one_line
from tui.dialogs.text_input import TextInputDialog

_SEARCH_PAUSE = 0.2
"""Seconds without a key after which a search begins."""
_HITS = 100
"""At most so many are shown; who has more looks for more words."""


class ConversationChosen(Message):
    """Open this one."""

    def __init__(self, id: str, turn: int | None = None) -> None:
        super().__init__()
        self.id = id
        self.turn = turn
        """Where the search found it; scroll there."""


class NewConversationWanted(Message):
    """Begin a new one."""


class ConversationRenamed(Message):
    """It has this title on disk now; if it is open, assign it."""

    def __init__(self, id: str, title: str) -> None:
        super().__init__()
        self.id, self.title = id, title


class ConversationDeleted(Message):
    """It is in the trash; if it is open, stop its answer and begin a new one."""

    def __init__(self, id: str) -> None:
        super().__init__()
        self.id = id


class Sidebar(Widget):
    """The conversations, last used first, or what a search found, best first.

    Args:
        store: Where they are.
        id: The widget's.
        classes: The widget's.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("delete", "delete", "Delete"),
        Binding("r", "rename", "Rename"),
        Binding("u", "undo", "Undo delete"),
        Binding("slash", "search", "Search", show=False),
        Binding("escape", "end_search", "End search", show=False),
        Binding("down", "to_list", show=False),
    ]
    DEFAULT_CSS = """
    Sidebar {
        width: 30;
        height: 1fr;
        layout: vertical;

        Input {
            width: 1fr;
        }
        OptionList, OptionList:focus {
            height: 1fr;
            border: none;
            padding: 0;
            text-wrap: nowrap;
            text-overflow: ellipsis;
        }
        .note {
            height: auto;
            max-height: 6;
            padding: 0 1;
            color: $text-muted;
        }
        .bar {
            height: 1;
        }
        .bar Button {
            width: 1fr;
            min-width: 6;
        }
        .undo {
            height: auto;
        }
        .undo Static {
            width: 1fr;
            height: auto;
            max-height: 2;
            padding: 0 1;
        }
        .undo Button {
            min-width: 8;
        }
        .-none {
            display: none;
        }
    }
    """

    def __init__(self, store: ConversationStore, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.store = store
        self._current: str | None = None
        self._shown: list[Entry] = []
        self._turns: dict[str, int | None] = {}
        """Where the search found something, by id."""
        self._deleted: list[tuple[Deleted, str]] = []
        """What can be undone, with titles; the last first."""

    def compose(self) -> ComposeResult:
        """Search box, list, what there is to say, buttons."""
        yield Input(placeholder="Search", max_length=200, compact=True)
        yield OptionList(markup=False)
        yield Static(classes="note -none", markup=False)
        with Horizontal(classes="undo -none"):
            yield Static(markup=False)
            yield Button(Content("Undo"), id="undo", compact=True)
        with Horizontal(classes="bar"):
            yield Button(Content("New"), id="new", compact=True)
            yield Button(Content("Rename"), id="rename", compact=True)
            yield Button(Content("Delete"), id="delete", compact=True)

    def on_mount(self) -> None:
        """Read the list."""
        self._read()

    def show_current(self, id: str | None) -> None:
        """Mark the open one, and read the list again. Call it when another is opened, and after saves."""
        self._current = id
        if self.is_mounted:
            self._read()

    def focus_search(self) -> None:
        """Put the cursor into the search box."""
        self.query_one(Input).focus()

    def ask_rename(self, id: str) -> None:
        """Ask for a new title of one, and give it."""
        entry = next((entry for entry in self._shown if entry.id == id), None)
        if entry is not None and entry.problem:
            self._say(entry.problem)
            return
        self.app.push_screen(
            TextInputDialog(
                "Rename the conversation",
                value=entry.title if entry else "",
                done="Rename",
                check=lambda title: None if title else "A title has at least one character.",
            ),
            lambda title: self._rename(id, title) if title else None,
        )

    def delete(self, id: str) -> None:
        """Move one to the trash; the user can undo it."""
        self.run_worker(self._delete(id))

    def undo_delete(self) -> None:
        """Undo the last deletion."""
        if self._deleted:
            self.run_worker(self._restore())

    # what is asked for by key and mouse

    def action_search(self) -> None:
        """Go to the search box."""
        self.focus_search()

    def action_to_list(self) -> None:
        """From the search box to what it found."""
        self.query_one(OptionList).focus()

    def action_end_search(self) -> None:
        """All conversations again; where nothing is searched for, the key is for others."""
        if not self.query_one(Input).value:
            raise SkipAction
        self.query_one(Input).value = ""
        self.query_one(OptionList).focus()

    def action_rename(self) -> None:
        """Rename the marked one."""
        if (entry := self._marked()) is not None:
            self.ask_rename(entry.id)

    def action_delete(self) -> None:
        """Delete the marked one."""
        if (entry := self._marked()) is not None:
            self.delete(entry.id)

    def action_undo(self) -> None:
        """Undo the last deletion."""
        self.undo_delete()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Escape is this widget's only while there is a search to end."""
        if action == "end_search":
            return bool(self.query_one(Input).value)
        if action == "undo":
            return bool(self._deleted)
        return True

    @on(Input.Changed)
    def _search(self, event: Input.Changed) -> None:
        event.stop()
        self._read(pause=_SEARCH_PAUSE)

    @on(Input.Submitted)
    def _to_hits(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_to_list()

    @on(OptionList.OptionSelected)
    def _choose(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        entry = self._shown[event.option_index]
        if entry.problem:
            self._say(entry.problem)
            return
        self._say("")
        self.query_one(".undo").add_class("-none")
        self.post_message(ConversationChosen(entry.id, self._turns.get(entry.id)))

    @on(OptionList.OptionHighlighted)
    def _mark(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Do what the button says."""
        event.stop()
        match event.button.id:
            case "new":
                self.post_message(NewConversationWanted())
            case "rename":
                self.action_rename()
            case "delete":
                self.action_delete()
            case "undo":
                self.undo_delete()

    # the list

    def _read(self, *, pause: float = 0.0) -> None:
        self.run_worker(self._fill_if_there(pause), group="list", exclusive=True)

    async def _fill_if_there(self, pause: float) -> None:
        with suppress(NoMatches):  # when the screen is taken down, a widget's parts go before its workers end
            await self._fill(pause)

    async def _fill(self, pause: float) -> None:
        await asyncio.sleep(pause)
        query = self.query_one(Input).value
        try:
            if query.strip():
                hits = await asyncio.to_thread(self.store.search, query)
                self._turns = {hit.id: hit.turn for hit in hits}
                entries = [Entry(hit.id, hit.title, hit.used) for hit in hits[:_HITS]]
                lines = [hit.excerpt for hit in hits[:_HITS]]
            else:
                entries = await asyncio.to_thread(self.store.entries)
                self._turns, lines = {}, [""] * len(entries)
        except EdgeAgentError as error:
            self._say(str(error))
            return
        self._show(entries, lines)
        if query.strip():
            more = f", the best {_HITS} are shown" if len(hits) > _HITS else ""
            self._say(f"{len(hits)} found{more}." if hits else "Nothing has all of these words.")
        else:
            self._say("" if entries else "No conversations yet.")

    def _show(self, entries: list[Entry], lines: list[str]) -> None:
        """Change the list and keep what is marked, and where it is scrolled to."""
        list_ = self.query_one(OptionList)
        marked, top = self._marked(), list_.scroll_y
        now = time.time()
        self._shown = entries
        list_.set_options(Option(self._prompt(entry, line, now)) for entry, line in zip(entries, lines, strict=True))
        wanted = marked.id if marked is not None else self._current
        places = [place for place, entry in enumerate(entries) if entry.id == wanted]
        if entries:
            list_.highlighted = places[0] if places else 0
        list_.scroll_to(y=top, animate=False)

    def _prompt(self, entry: Entry, line: str, now: float) -> Content:
        sign = "! " if entry.problem else "▶ " if entry.id == self._current else "  "
        below = "cannot be read" if entry.problem else line or ago(now - entry.used)
        style = "bold" if entry.id == self._current else ""
        return Content.assemble(sign, (entry.title, style), "\n  ", (below, "$foreground-muted"))

    def _marked(self) -> Entry | None:
        place = self.query_one(OptionList).highlighted
        return self._shown[place] if place is not None and place < len(self._shown) else None

    def _say(self, text: str) -> None:
        note = self.query_one(".note", Static)
        note.set_class(not text, "-none")
        note.update(Content(clean(text)))

    # the files

    def _rename(self, id: str, title: str) -> None:
        self.run_worker(self._rename_file(id, title))

    async def _rename_file(self, id: str, title: str) -> None:
        try:
            await asyncio.to_thread(self.store.rename, id, title)
        except EdgeAgentError as error:
            self._say(str(error))
            return
        self.post_message(ConversationRenamed(id, title))
        self._read()

    async def _delete(self, id: str) -> None:
        title = next((entry.title for entry in self._shown if entry.id == id), "the conversation")
        try:
            self._deleted.append((await asyncio.to_thread(self.store.delete, id), title))
        except EdgeAgentError as error:
            self._say(str(error))
            return
        self.post_message(ConversationDeleted(id))
        self._offer_undo()
        self._read()

    async def _restore(self) -> None:
        deleted, _ = self._deleted.pop()
        try:
            await asyncio.to_thread(self.store.restore, deleted)
        except EdgeAgentError as error:
            self._say(str(error))
            return
        finally:
            self._offer_undo()
        self._read()

    def _offer_undo(self) -> None:
        bar = self.query_one(".undo")
        bar.set_class(not self._deleted, "-none")
        if self._deleted:
            bar.query_one(Static).update(Content(one_line(f"Deleted: {self._deleted[-1][1]}", 40)))


def ago(seconds: float) -> str:
    """How long ago, in few words."""
    minutes = seconds / 60
    if minutes < 1:
        return "now"
    if minutes < 60:
        return f"{int(minutes)} min ago"
    if minutes < 24 * 60:
        return f"{int(minutes / 60)} h ago"
    days = int(minutes / (24 * 60))
    return "1 day ago" if days == 1 else f"{days} days ago"
