"""Serves a model package on this PC: which one, and what the head says while it loads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Button, Input, Log, OptionList, Static
from textual.widgets.option_list import Option

from shards.errors import EdgeAgentError
from tui.client.errors import HeadError, KeyWantedError
from tui.client.head_client import HeadClient
from tui.client.plain import clean, one_line
from tui.dialogs.dialog import Dialog, button, buttons, problem, title, words
from tui.heads import StartedHead, Starter

_LOOK_SECONDS = 0.4


class StartHeadDialog(Dialog[StartedHead]):
    """Asks for a package and shows the head's log until it has loaded; answers the head, or None.

    Closing the dialog leaves a head to load; "End it" ends it.

    Args:
        starter: Starts heads.
        why: Why this is asked.
    """

    DEFAULT_CSS = """
    StartHeadDialog {
        OptionList {
            height: auto;
            max-height: 6;
            margin-bottom: 1;
        }
        Log {
            height: 9;
            margin-bottom: 1;
        }
    }
    """

    def __init__(self, starter: Starter, why: str = "") -> None:
        super().__init__()
        self._starter, self._why = starter, why
        self._head: StartedHead | None = None

    def compose(self) -> ComposeResult:
        """What is at hand, a line for a folder, the log, buttons."""
        with VerticalScroll(classes="box", can_focus=False):
            yield title("Start a head on this PC")
            if self._why:
                yield words(self._why)
            yield Static("Which model package? (edge-agent export makes one)", id="state", markup=False)
            yield OptionList(id="packages")
            yield Input(placeholder="its folder", id="folder")
            yield Log(id="log")
            yield problem()
            yield buttons(
                button("Start", "start", variant="primary"),
                button("Let it load (Esc)", "go-on"),
                button("Cancel (Esc)", "cancel"),
            )

    def on_mount(self) -> None:
        """Look which packages there are."""
        self.query_one("#packages").display = False
        self._show_phase(loading=False)
        self.query_one("#folder").focus()
        self.run_worker(self._list_packages(), group="packages")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """A package that was found."""
        event.stop()
        self._start(Path(str(event.option.id)))

    def on_input_changed(self, event: Input.Changed) -> None:
        """What was wrong is being mended."""
        event.stop()
        self.show_problem("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """A folder."""
        event.stop()
        self._start_typed()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """One of the buttons."""
        event.stop()
        match event.button.id:
            case "start":
                self._start_typed()
            case "go-on":
                self.action_cancel()
            case _:
                self._give_up()

    def action_cancel(self) -> None:
        """Close; what loads goes on."""
        self.dismiss(self._head)

    def _give_up(self) -> None:
        if self._head is None:
            self.dismiss(None)
        else:
            self.query_one("#state", Static).update("Ending it …")
            self.run_worker(self._end(self._head), group="load", exclusive=True)

    def _start_typed(self) -> None:
        typed = self.query_one("#folder", Input).value.strip()
        chosen = self.query_one("#packages", OptionList).highlighted_option
        if typed:
            self._start(Path(typed).expanduser())
        elif chosen is not None:
            self._start(Path(str(chosen.id)))
        else:
            self.show_problem("Type the folder of a model package.")

    def _start(self, package: Path) -> None:
        self.show_problem("")
        self.run_worker(self._load(package), group="load", exclusive=True)

    async def _list_packages(self) -> None:
        packages: Sequence[Path] = await asyncio.to_thread(self._starter.packages)
        options = self.query_one("#packages", OptionList)
        options.add_options(
            [
                Option(Content(f"{one_line(each.name, 40)}  {one_line(str(each.parent), 80)}"), id=str(each))
                for each in packages
            ]
        )
        options.display = bool(packages)
        if packages:
            options.highlighted = 0
            if not self.query_one("#folder", Input).value:
                options.focus()

    async def _load(self, package: Path) -> None:
        """Start a head and wait for its model."""
        try:
            self._head = head = await asyncio.to_thread(self._starter.start, package)
        except EdgeAgentError as error:
            self.show_problem(str(error))
            return
        self._show_phase(loading=True)
        began = monotonic()
        client = HeadClient(head.url)
        shown: list[str] = []
        try:
            while True:
                state = f"{package.name} loads, {monotonic() - began:.0f} s; {head.url}"
                self.query_one("#state", Static).update(Content(one_line(state)))
                running, lines = await asyncio.to_thread(lambda: (head.is_running(), head.log()))
                if lines != shown:
                    shown = lines
                    log = self.query_one(Log)
                    log.clear()
                    log.write_lines(clean(line).replace("\t", "    ") for line in lines)
                if not running:
                    self._head = None
                    self._show_phase(loading=False)
                    self.query_one(Log).display = True
                    self.query_one("#state", Static).update("Which model package?")
                    self.show_problem("It ended; its last lines say why.")
                    return
                if await _has_loaded(client):
                    self.dismiss(head)
                    return
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await client.close()

    async def _end(self, head: StartedHead) -> None:
        await asyncio.to_thread(head.stop)
        self.dismiss(None)

    def _show_phase(self, *, loading: bool) -> None:
        self.query_one("#folder").display = not loading
        if loading:
            self.query_one("#packages").display = False
        self.query_one(Log).display = loading
        self.query_one("#start").display = not loading
        self.query_one("#go-on").display = loading
        self.query_one("#cancel", Button).label = Content("End it" if loading else "Cancel (Esc)")
        self.query_one("#go-on" if loading else "#folder").focus()


async def _has_loaded(client: HeadClient) -> bool:
    try:
        return bool((await client.fleet()).chains)
    except KeyWantedError:
        return True
    except HeadError:
        return False
