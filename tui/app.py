"""The app: chat and fleet on two tabs, the head they talk to, and what concerns both."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.events import Resize
from textual.geometry import Size
from textual.screen import Screen
from textual.theme import Theme
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Footer
from textual.worker import Worker

from shards.errors import EdgeAgentError
from tui.chat.chat_pane import ChatPane
from tui.chat.sidebar import Sidebar
from tui.chat.store import ConversationStore
from tui.choice_label import ChoiceLabel
from tui.client.address import is_here, short
from tui.client.fleet_watch import FleetWatch
from tui.client.head_client import HeadClient
from tui.client.plain import clean
from tui.client.reach import first_that_answers
from tui.client.watch import Connection, ConnectionChanged, FleetChanged
from tui.commands import KeyCommands
from tui.dialogs.choice import Choice, ChoiceDialog
from tui.dialogs.connect import ConnectDialog, StartOne
from tui.dialogs.help_dialog import HelpDialog, KeyGroup
from tui.dialogs.key_dialog import KeyDialog
from tui.dialogs.start_head import StartHeadDialog
from tui.fleet.fleet_pane import FleetPane
from tui.heads import FoundHead, StartedHead, Surroundings
from tui.keys import display, keys_of, own_keys
from tui.panes import SWITCHER, Pane
from tui.preferences import Preferences
from tui.terminal_input import guard_pastes
from tui.top_bar import Tab, TopBar

_NONE = "start one with edge-agent serve, or choose one with ctrl+k"
_USUAL_SECONDS = 2.0
"""How often a head is looked for at the usual place while there is none."""

_DARK, _LIGHT = "textual-dark", "textual-light"
_SMALLEST = Size(20, 6)
"""What all is laid out for at least: Textual's own widgets fail where there is no room at all for their text."""


class _MainScreen(Screen[object]):
    AUTO_FOCUS = ""  # a tab says itself what it begins with


class EdgeAgentApp(App[StartedHead | None]):
    """Chat and fleet. Its result is a head that it started and that is to go on running.

    Args:
        data: Folder for conversations and for what the screen remembers.
        url: Where the head listens; None: the usual place, then the one of last time, then a look around.
        key: The head's API key; None: what the surroundings know.
        tab: The one to begin with.
        surroundings: How to find and start heads.
    """

    TITLE = "edge-agent"
    COMMANDS = App.COMMANDS | {KeyCommands}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Help", priority=True, tooltip="All keys"),
        Binding("f2", "show_tab('chat')", "Chat", priority=True, show=False, tooltip="Chat: the first tab"),
        Binding("f3", "show_tab('fleet')", "Fleet", priority=True, show=False, tooltip="Fleet: the second tab"),
        Binding("ctrl+k", "connect", "Connect", priority=True, tooltip="Connect to another head"),
        Binding("ctrl+q", "quit", "Quit", priority=True, tooltip="Quit"),
    ]
    DEFAULT_CSS = """
    EdgeAgentApp ContentSwitcher { height: 1fr; }
    """

    def __init__(
        self,
        data: Path,
        url: str | None = None,
        *,
        key: str | None = None,
        tab: Tab = "chat",
        surroundings: Surroundings | None = None,
    ) -> None:
        super().__init__()
        self._given_url, self._given_key, self._first_tab = url, key, tab
        self._around = surroundings or Surroundings()
        self._preferences = Preferences(data)
        self._store = ConversationStore(data / "conversations")
        self._top, self._chat, self._fleet = TopBar(), ChatPane(self._store), FleetPane()
        self._chat.id, self._fleet.id = "chat", "fleet"
        self._clients: list[HeadClient] = []
        """All there were: an answer may still come from one before."""
        self._watch: FleetWatch | None = None
        self._started: StartedHead | None = None
        self._focused: dict[str, Widget] = {}
        """What had the focus on a tab that is not seen."""
        self.connection = Connection("looking", url or "")

    @property
    def size(self) -> Size:
        """That of the terminal, or what is needed at least; then the rest is not seen."""
        return _at_least(super().size)

    def get_driver_class(self) -> type[Driver]:
        """What reads from the terminal and draws on it."""
        driver = super().get_driver_class()
        guard_pastes(driver)
        return driver

    def on_resize(self, event: Resize) -> None:
        """Lay nothing out for less."""
        event.size = _at_least(event.size)

    def compose(self) -> ComposeResult:
        """The line above, two tabs, the keys below."""
        yield self._top
        with ContentSwitcher(id=SWITCHER, initial=self._first_tab):
            yield self._chat
            yield self._fleet
        yield Footer(compact=True)

    def get_default_screen(self) -> Screen[object]:
        """The screen that all is on."""
        return _MainScreen(id="_default")

    def on_mount(self) -> None:
        """Take up the theme of last time, and look for the head."""
        if self._preferences.theme in self.available_themes:
            self.theme = self._preferences.theme
        self.theme_changed_signal.subscribe(self, self._remember_theme)
        self._top.show_tab(self._first_tab)
        self.call_after_refresh(self._open)

    def _open(self) -> None:
        self._tell(self.connection)
        self._focus_tab()
        self._begin(self._find_head())
        # what is there by now stays: going over it again and again would hold up frames for some 70 ms each time
        gc.collect()
        gc.freeze()

    async def on_unmount(self) -> None:
        """Let go of the connections."""
        for client in self._clients:
            await client.close()

    # news of the head

    def on_connection_changed(self, message: ConnectionChanged) -> None:
        """The head came, went, or wants a key."""
        if not self.is_running:  # the screen is being taken down
            return
        self._tell(message.connection)
        if message.connection.state == "locked":
            self.run_worker(self._ask_key(message.connection), group="key", exclusive=True)
        elif message.connection.state == "up" and self._client is not None and self._client.key is None:
            self.run_worker(self._look_up_key(self._client), group="key", exclusive=True)

    def on_fleet_changed(self, message: FleetChanged) -> None:
        """A new state."""
        if not self.is_running:
            return
        self._top.show_fleet(message.fleet, message.history)
        for pane in self._panes:
            pane.show_fleet(message)

    # actions

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A dialog is answered before anything else is begun."""
        return not (action in ("help", "show_tab", "connect") and self.screen.is_modal)

    def action_help(self) -> None:
        """Show all keys."""
        chat, fleet, in_list = keys_of(self._chat), keys_of(self._fleet), list(own_keys(self.query_one(Sidebar)))
        groups = [
            KeyGroup("Everywhere", (*display(self, own_keys(self)), ("^p", "Command palette"))),
            KeyGroup("Chat", display(self, (key for key in chat if key not in in_list))),
            KeyGroup("Chat, in the list of conversations", display(self, in_list)),
            KeyGroup("Fleet", display(self, fleet)),
        ]
        self.push_screen(HelpDialog([group for group in groups if group.keys]))

    def action_show_tab(self, tab: Tab) -> None:
        """Show a tab, with the focus where it was."""
        switcher = self.query_one(f"#{SWITCHER}", ContentSwitcher)
        if switcher.current == tab:
            return
        if self.focused is not None and switcher.current:
            self._focused[switcher.current] = self.focused
        switcher.current = tab
        self._top.show_tab(tab)
        self.call_after_refresh(self._focus_tab)

    def on_choice_label_chosen(self, message: ChoiceLabel.Chosen) -> None:
        """A tab was clicked."""
        self.action_show_tab("fleet" if message.choice == "fleet" else "chat")

    def action_connect(self) -> None:
        """Choose another head."""
        self._begin(self._choose(why="", found=None))

    def action_start_head(self) -> None:
        """Start a head on this PC."""
        self._begin(self._start())

    def action_key(self) -> None:
        """Use another API key."""
        if self._client is not None:
            self.run_worker(self._ask_key(self.connection), group="key", exclusive=True)

    def action_toggle_dark(self) -> None:
        """Dark or light."""
        self.theme = _LIGHT if self.current_theme.dark else _DARK

    async def action_quit(self) -> None:
        """Quit; a head that was started here is asked about."""
        if self._started is not None and self._started.is_running():
            self.run_worker(self._ask_about_head(self._started), group="quit", exclusive=True)
        else:
            self.exit()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What has no key."""
        yield SystemCommand("Theme", "Choose the colours", self.action_change_theme)
        yield SystemCommand("Dark or light", "Change between a dark and a light theme", self.action_toggle_dark)
        if not screen.is_modal:
            if self._client is not None:
                yield SystemCommand("API key", "Give the head's API key", self.action_key)
            if self._around.starter is not None:
                yield SystemCommand("Start a head here", "Serve a model package on this PC", self.action_start_head)
        if not self.is_web:
            yield SystemCommand("Screenshot", "Save a picture (SVG) of the screen", self._save_picture)

    # finding a head

    async def _find_head(self) -> None:
        if self._given_url:
            await self._connect(self._given_url)
            return
        if url := await first_that_answers(filter(None, (self._around.usual_url, self._preferences.url))):
            await self._connect(url)
            return
        self._tell(Connection("looking", "", "looking for heads on this network"))
        self.run_worker(self._await_usual(), group="usual", exclusive=True)
        try:
            found = await asyncio.to_thread(self._around.find)
        except EdgeAgentError as error:
            await self._choose(str(error), ())
            return
        here = await first_that_answers(url for head in found for url in head.urls if is_here(url))
        if here is not None:
            await self._connect(here)
        else:  # what others announce proves nothing: a person chooses whom to talk to
            await self._choose("No head answers on this PC.", found)

    async def _await_usual(self) -> None:
        """While there is no head: take the one that comes up at the usual place."""
        usual = self._around.usual_url
        while self._client is None and usual:
            await asyncio.sleep(_USUAL_SECONDS)
            if self._client is not None or not await first_that_answers((usual,)):
                continue
            if isinstance(self.screen, ConnectDialog):
                self.screen.dismiss(usual)
            elif not any(screen.is_modal for screen in self.screen_stack):
                self._begin(self._connect(usual))

    async def _choose(self, why: str, found: Sequence[FoundHead] | None) -> None:
        around, can_start = self._around, self._around.starter is not None
        answer = await self.push_screen_wait(
            ConnectDialog(around.find, usual_url=around.usual_url, can_start=can_start, why=why, found=found)
        )
        match answer:
            case StartOne():
                await self._start()
            case str():
                await self._connect(answer)
            case None if self._client is None:
                self._tell(Connection("none", "", _NONE))

    async def _start(self) -> None:
        if self._around.starter is None:
            return
        if self._started is not None and self._started.is_running():
            self.notify(f"A head runs already: {short(self._started.url)}", markup=False)
            return
        head = await self.push_screen_wait(StartHeadDialog(self._around.starter))
        if head is not None:
            self._started = head
            await self._connect(head.url)
        elif self._client is None:
            self._tell(Connection("none", "", _NONE))

    async def _connect(self, url: str) -> None:
        """From now on this head is the one."""
        key = self._given_key if url == self._given_url else None
        client = HeadClient(url, key or await self._known_key(url))
        self._clients.append(client)
        for pane in self._panes:
            pane.client = client
        self._tell(Connection("looking", url))
        self._watch = FleetWatch(client, self.post_message)
        self.run_worker(self._watch.run(), group="watch", exclusive=True)
        if url != self._preferences.url:
            self._preferences.url = url
            await asyncio.to_thread(self._preferences.save)

    # keys

    async def _known_key(self, url: str) -> str | None:
        try:
            return await asyncio.to_thread(self._around.key_for, url)
        except EdgeAgentError as error:
            self.notify(clean(str(error)), severity="error", markup=False)
            return None

    async def _look_up_key(self, client: HeadClient) -> None:
        """A head makes its owner's key when it starts, which may have been just now."""
        client.key = await self._known_key(client.url)

    async def _ask_key(self, connection: Connection) -> None:
        client = self._client
        if client is None or any(isinstance(screen, KeyDialog) for screen in self.screen_stack):
            return
        key = await self.push_screen_wait(KeyDialog(client.url, connection.why))
        if key is not None and self._watch is not None:
            client.key = key
            self._watch.retry()

    # quitting

    async def _ask_about_head(self, head: StartedHead) -> None:
        answer = await self.push_screen_wait(
            ChoiceDialog(
                "The head on this PC was started here. End it too?",
                f"It serves at {head.url}. If it goes on running, this screen finds it again.",
                (Choice("end", "End it", "primary"), Choice("leave", "Leave it running"), Choice("back", "Back")),
            )
        )
        if answer == "end":
            self.notify("The head is being ended …")
            await asyncio.to_thread(head.stop)
            self.exit()
        elif answer == "leave":
            self.exit(head)

    # parts

    @property
    def _client(self) -> HeadClient | None:
        return self._clients[-1] if self._clients else None

    @property
    def _panes(self) -> tuple[Pane, ...]:
        return self._chat, self._fleet

    def _begin(self, work: object) -> Worker[None]:
        """Looking, choosing and starting exclude each other."""
        return self.run_worker(work, group="connect", exclusive=True)  # type: ignore[arg-type]

    def _tell(self, connection: Connection) -> None:
        self.connection = connection
        if not self.is_running:
            return
        self._top.show_connection(connection)
        for pane in self._panes:
            pane.show_connection(connection)

    def _focus_tab(self) -> None:
        """Give the focus to what had it, or to what the tab begins with."""
        pane = self.query_one(f"#{SWITCHER}", ContentSwitcher).visible_content
        if pane is None:
            return
        before = self._focused.get(pane.id or "")
        if before is not None and before.is_attached and before.focusable:
            before.focus()
        else:
            pane.focus()

    def _remember_theme(self, theme: Theme) -> None:
        if theme.name != self._preferences.theme:
            self._preferences.theme = theme.name
            self.run_worker(self._preferences.save, thread=True, group="preferences")

    def _save_picture(self) -> None:
        self.set_timer(0.1, self.deliver_screenshot)  # once the palette has gone


def _at_least(size: Size) -> Size:
    return Size(max(size.width, _SMALLEST.width), max(size.height, _SMALLEST.height))
