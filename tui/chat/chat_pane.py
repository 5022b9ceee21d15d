"""The chat tab: the list of conversations, and the one that is open.

TextArea needs ctrl+a, c, d, u, v, w, x, z and the arrows for typing; ctrl+e, f and y are taken from it. All keys of the
chat are in the BINDINGS of this pane, of the desk, the composer and the sidebar.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.timer import Timer
from textual.widget import Widget

from shards.errors import EdgeAgentError
from tui.chat.attachment import read_attachment
from tui.chat.conversation import Conversation
from tui.chat.conversation_desk import ConversationDesk
from tui.chat.errors import ConversationFileError
from tui.chat.export import export
from tui.chat.settings_dialog import SettingsDialog
from tui.chat.sidebar import (
    ConversationChosen,
    ConversationDeleted,
    ConversationRenamed,
    NewConversationWanted,
    Sidebar,
)
from tui.chat.store import ConversationStore
from tui.client.head_client import HeadClient
from tui.client.plain import clean, one_line
from tui.client.watch import Connection, FleetChanged
from tui.dialogs.text_input import TextInputDialog

_DRAFT_PAUSE = 1.0
"""Seconds after which what is being typed is saved."""
_ANSWER_PAUSE = 3.0
"""Seconds after which answers on their way are, again and again."""
_NARROW = 90
"""Below so many columns the list of conversations is hidden at first, and takes all the room when it is shown."""


class ChatPane(Widget):
    """Conversations, and the one that is open.

    Args:
        store: Where conversations are kept.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+n", "new", "New", priority=True, tooltip="New conversation"),
        Binding("ctrl+o", "attach", "Attach", priority=True, tooltip="Attach a text file"),
        Binding("ctrl+s", "settings", "Settings", priority=True, tooltip="System prompt and sampling"),
        Binding("ctrl+b", "conversations", "List", priority=True, tooltip="Conversations on or off"),
        Binding("ctrl+f", "search", "Search", priority=True, show=False, tooltip="Search conversations"),
        Binding("ctrl+t", "rename", "Rename", priority=True, show=False, tooltip="Rename the conversation"),
        Binding("escape", "close_list", "Back", show=False, tooltip="From the list back to the conversation"),
        Binding("ctrl+g", "export", "Export", priority=True, show=False, tooltip="Export as Markdown"),
    ]
    DEFAULT_CSS = """
    ChatPane {
        height: 1fr;
        #conversations { width: 30; }
        &.-no-list #conversations { display: none; }
        &.-narrow #conversations { width: 1fr; }
        &.-narrow #desk { display: none; }
        &.-narrow.-no-list #desk { display: block; }
    }
    """

    def __init__(self, store: ConversationStore) -> None:
        super().__init__()
        self.store = store
        self._desk = ConversationDesk(self._save, id="desk")
        self._sidebar = Sidebar(store, id="conversations")
        self._is_list_wanted: bool | None = None
        self._draft_timer: Timer | None = None
        self._unsaved: list[Conversation] = []
        """Those that are being saved, or could not be; one may be in it several times."""
        self._told = ""
        """Why the last save failed."""
        self._listed: tuple[str, str, float] | None = None
        """What the list was last read for."""

    def compose(self) -> ComposeResult:
        """The list beside the conversation."""
        with Horizontal():
            yield self._sidebar
            yield self._desk

    def on_mount(self) -> None:
        """Go on with what was being typed last time."""
        self.set_interval(_ANSWER_PAUSE, self._save_answers)
        self.run_worker(self._open_draft(), group="open", exclusive=True)

    def on_unmount(self) -> None:
        """Nothing is lost at the end."""
        self._desk.settle()
        for conversation in {each.id: each for each in (*self._unsaved, self._desk.conversation)}.values():
            with suppress(ConversationFileError):  # said when it was tried before, and there is no screen any more
                self.store.save_now(conversation)

    def focus(self, scroll_visible: bool = True) -> ChatPane:
        """Give the focus to what is being typed."""
        self._desk.focus(scroll_visible)
        return self

    @property
    def client(self) -> HeadClient | None:
        """The head that is asked; None: there is none yet."""
        return self._desk.client

    @client.setter
    def client(self, client: HeadClient | None) -> None:
        self._desk.client = client

    def show_connection(self, connection: Connection) -> None:
        """Take news of the head."""
        self._desk.show_connection(connection)

    def show_fleet(self, change: FleetChanged) -> None:
        """Take a new state of the fleet."""
        self._desk.show_fleet(change)

    # the list of conversations

    def action_new(self) -> None:
        """Begin a new conversation, with the settings of the one before."""
        self._open(Conversation(settings=self._desk.conversation.settings))

    def action_conversations(self) -> None:
        """Show or hide the list."""
        self._show_list(self.has_class("-no-list"))

    def action_close_list(self) -> None:
        """Back from the list."""
        if self.has_class("-narrow"):
            self._show_list(False)
        else:
            self.focus()

    def action_search(self) -> None:
        """Look for words in all conversations."""
        self._show_list(True)
        self._sidebar.focus_search()

    def on_conversation_chosen(self, event: ConversationChosen) -> None:
        """Open one."""
        event.stop()
        self.run_worker(self._open_file(event.id, event.turn), group="open", exclusive=True)

    def on_new_conversation_wanted(self, event: NewConversationWanted) -> None:
        """Begin a new one."""
        event.stop()
        self.action_new()

    def on_conversation_renamed(self, event: ConversationRenamed) -> None:
        """The open one may have another title."""
        event.stop()
        for conversation in self._desk.opened:
            if conversation.id == event.id:
                conversation.title = event.title
        self._desk.show_label()

    def on_conversation_deleted(self, event: ConversationDeleted) -> None:
        """Stop its answer; if it is the open one, begin another."""
        event.stop()
        self._desk.stop(event.id)
        if self._desk.conversation.id == event.id:
            self._desk.open(Conversation(settings=self._desk.conversation.settings))

    async def _open_draft(self) -> None:
        """Go on where something was being typed last time."""
        try:
            entries = await asyncio.to_thread(self.store.entries)
            if entries and not entries[0].problem:
                conversation = await asyncio.to_thread(self.store.load, entries[0].id)
                if not self._desk.conversation.is_empty:
                    return
                if conversation.draft or conversation.draft_attachments:
                    self._open(conversation)
                else:
                    self._desk.conversation.settings = conversation.settings
        except ConversationFileError as error:
            self._complain(error)

    async def _open_file(self, id: str, turn: int | None) -> None:
        opened = next((each for each in self._desk.opened if each.id == id), None)
        try:
            self._open(opened if opened is not None else await asyncio.to_thread(self.store.load, id), turn)
        except ConversationFileError as error:
            self._complain(error)

    def _open(self, conversation: Conversation, turn: int | None = None) -> None:
        """Show a conversation; the one before is saved with what is being typed in it."""
        if conversation is not self._desk.conversation:
            self._save(self._desk.conversation)
        self._desk.open(conversation, turn)
        self._sidebar.show_current(conversation.id)
        if self.has_class("-narrow"):
            self._show_list(False)
        self.focus()

    def _show_list(self, shown: bool) -> None:
        self._is_list_wanted = shown
        self.set_class(not shown, "-no-list")
        if shown:
            self._sidebar.action_to_list()
        else:
            self.focus()

    def on_resize(self, event: events.Resize) -> None:
        """A narrow screen has no room for the list."""
        is_narrow = event.size.width < _NARROW
        if is_narrow != self.has_class("-narrow"):
            self.set_class(is_narrow, "-narrow")
            self.set_class(is_narrow or self._is_list_wanted is False, "-no-list")

    # dialogs

    def action_rename(self) -> None:
        """Ask for another title."""
        self.run_worker(self._rename(), group="dialog", exclusive=True)

    async def _rename(self) -> None:
        conversation = self._desk.conversation
        title = await self.app.push_screen_wait(
            TextInputDialog("Rename the conversation", value=conversation.title, done="Rename")
        )
        if title:
            conversation.title = title
            self._desk.show_label()
            self._save(conversation)

    def action_attach(self) -> None:
        """Ask for a text file, and let it go along."""
        self.run_worker(self._attach_file(), group="dialog", exclusive=True)

    async def _attach_file(self) -> None:
        path = await self.app.push_screen_wait(TextInputDialog("Attach a text file", "Its path:", done="Attach"))
        if path:
            try:
                self._desk.attach(await asyncio.to_thread(lambda: read_attachment(Path(path).expanduser())))
            except EdgeAgentError as error:
                self._complain(error)

    def action_settings(self) -> None:
        """Ask for system prompt and sampling."""
        self.run_worker(self._change_settings(), group="dialog", exclusive=True)

    async def _change_settings(self) -> None:
        conversation = self._desk.conversation
        chosen = await self.app.push_screen_wait(SettingsDialog(conversation.system_prompt, conversation.settings))
        if chosen is not None:
            conversation.system_prompt, conversation.settings = chosen.system_prompt, chosen.settings
            self._save(conversation)
            self._desk.count()

    def action_export(self) -> None:
        """Ask where to, and write the conversation as Markdown."""
        self.run_worker(self._export(), group="dialog", exclusive=True)

    async def _export(self) -> None:
        conversation = self._desk.conversation
        target = await self.app.push_screen_wait(
            TextInputDialog("Export as Markdown", "File, or folder:", value=str(Path.cwd()), done="Export")
        )
        if target:
            try:
                path = await asyncio.to_thread(lambda: export(conversation, Path(target).expanduser()))
            except EdgeAgentError as error:
                self._complain(error)
            else:
                self.notify(f"Exported to {one_line(str(path))}", markup=False)

    # saving

    def on_conversation_desk_typed(self, event: ConversationDesk.Typed) -> None:
        """Save what is being typed, in a moment."""
        event.stop()
        if self._draft_timer is None:
            self._draft_timer = self.set_timer(_DRAFT_PAUSE, self._save_draft)

    def _save_draft(self) -> None:
        self._draft_timer = None
        self._save(self._desk.conversation)

    def _save_answers(self) -> None:
        for conversation in self._desk.flush():
            self._save(conversation)

    def _save(self, conversation: Conversation) -> None:
        self._unsaved.append(conversation)
        self.run_worker(self._save_file(conversation), group="save")

    async def _save_file(self, conversation: Conversation) -> None:
        try:
            saved = await self.store.save(conversation)
        except ConversationFileError as error:
            if str(error) != self._told:  # it is tried again and again; what is read is not to be covered
                self._told = str(error)
                self._complain(error)
            return
        self._told = ""
        place = next(place for place, each in enumerate(self._unsaved) if each is conversation)
        del self._unsaved[place]
        if saved == "copied":
            self.notify("Another program changed this conversation; it goes on here as a copy.", markup=False)
            self._desk.show_label()
        listed = conversation.id, conversation.title, conversation.used
        if listed != self._listed:
            self._listed = listed
            self._sidebar.show_current(self._desk.conversation.id)

    # parts

    def _complain(self, error: EdgeAgentError) -> None:
        self.notify(clean(str(error)), severity="error", markup=False)
