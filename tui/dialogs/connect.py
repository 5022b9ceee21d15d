"""Which head to talk to: one that was found, one whose address is typed, or one to be started here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from shards.errors import ConfigurationError, EdgeAgentError
from tui.client.address import complete
from tui.client.plain import one_line
from tui.client.reach import first_that_answers
from tui.dialogs.dialog import Dialog, button, buttons, problem, title, words
from tui.heads import FoundHead


@dataclass(frozen=True, slots=True)
class StartOne:
    """Start a head on this PC."""


class ConnectDialog(Dialog[str | StartOne]):
    """Shows heads while they are looked for; answers a URL, `StartOne`, or None.

    Args:
        find: Looks for heads; blocks for some seconds.
        usual_url: Its port is taken where none is typed.
        can_start: A head can be started here.
        why: Why this is asked.
        found: Heads that were found a moment ago; None: look for them now.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+r", "look", "Look again")]
    DEFAULT_CSS = """
    ConnectDialog {
        OptionList {
            height: auto;
            max-height: 8;
            margin-bottom: 1;
        }
        #looking {
            color: $text-muted;
        }
    }
    """

    def __init__(
        self,
        find: Callable[[], Sequence[FoundHead]],
        *,
        usual_url: str = "",
        can_start: bool = False,
        why: str = "",
        found: Sequence[FoundHead] | None = None,
    ) -> None:
        super().__init__()
        self._find, self._usual_url, self._can_start, self._why, self._found = find, usual_url, can_start, why, found
        self._heads: list[FoundHead] = []
        """As listed."""

    def compose(self) -> ComposeResult:
        """What was found, a line for an address, buttons."""
        with VerticalScroll(classes="box", can_focus=False):
            yield title("Connect to a head")
            if self._why:
                yield words(self._why)
            yield Static(id="looking", markup=False)
            yield OptionList(id="found")
            yield Input(placeholder="or its address: pc-2:8114", id="address")
            yield problem()
            start = [button("Start one here", "start")] if self._can_start else []
            yield buttons(button("Connect", "connect", variant="primary"), button("Look again", "look"), *start)

    def on_mount(self) -> None:
        """Show what is known, or look."""
        self.query_one("#found").display = False
        self.query_one("#address").focus()
        if self._found is None:
            self.action_look()
        else:
            self._show(self._found)

    def action_look(self) -> None:
        """Look for heads."""
        self.query_one("#looking", Static).update("Looking for heads on this network …")
        self.run_worker(self._look(), group="look", exclusive=True)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """A head that was found."""
        event.stop()
        self._try_option(event.option)

    def on_input_changed(self, event: Input.Changed) -> None:
        """What was wrong is being mended."""
        event.stop()
        self.show_problem("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """An address."""
        event.stop()
        self._connect()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """One of the buttons."""
        event.stop()
        match event.button.id:
            case "start":
                self.dismiss(StartOne())
            case "look":
                self.action_look()
            case _:
                self._connect()

    def _connect(self) -> None:
        typed = self.query_one("#address", Input).value
        chosen = self.query_one("#found", OptionList).highlighted_option
        if not typed.strip() and chosen is not None and not chosen.disabled:
            self._try_option(chosen)
            return
        try:
            self.dismiss(complete(typed, self._usual_url))
        except ConfigurationError as error:
            self.show_problem(str(error) if typed.strip() else "Type an address, or choose a head.")

    def _try_option(self, option: Option) -> None:
        self.run_worker(self._try(self._heads[int(option.id or 0)]), group="try", exclusive=True)

    async def _try(self, head: FoundHead) -> None:
        """Answer the first of a head's addresses that can be reached."""
        looking = self.query_one("#looking", Static)
        looking.update("Knocking …")
        url = await first_that_answers(head.urls)
        if url is not None:
            self.dismiss(url)
            return
        looking.update("")
        self.show_problem(f"No answer from {one_line(head.name, 40)} at {one_line(', '.join(head.urls), 200)}")

    async def _look(self) -> None:
        try:
            self._show(await asyncio.to_thread(self._find))
        except EdgeAgentError as error:
            self.query_one("#looking", Static).update(Content(one_line(str(error))))

    def _show(self, found: Sequence[FoundHead]) -> None:
        options = self.query_one("#found", OptionList)
        options.clear_options()
        self._heads = sorted(found, key=lambda head: not head.urls)
        for number, head in enumerate(self._heads):
            options.add_option(Option(_describe(head), id=str(number), disabled=not head.urls))
        options.display = bool(found)
        if any(head.urls for head in found):
            options.highlighted = 0
            if not self.query_one("#address", Input).value:
                options.focus()
        count = f"{len(found)} found by mDNS:" if found else "None presents itself on this network by mDNS."
        self.query_one("#looking", Static).update(count)


def _describe(head: FoundHead) -> Content:
    where = head.urls[0] if head.urls else "only for its own PC (see serve --host)"
    version = f" {one_line(head.version, 20)}" if head.version else ""
    return Content(f"{one_line(head.name, 30)}{version}  {one_line(where, 80)}")
