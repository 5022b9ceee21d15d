"""What happened in the fleet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from tui import amounts
from tui.client.state import Event
from tui.fleet.texts import fitted

_NOTHING = "nothing happened yet"
_MOST = 500
_SLACK = 100
"""Events are cut to the newest now and then, and only while the reader follows: nothing moves under their eyes."""


def joined(known: Sequence[Event], newest: Sequence[Event]) -> list[Event]:
    """The events known so far and those of the newest state, whose list is bounded.

    Where the two do not meet, it is another head, or it began anew: then what was known is of no use any more.
    """
    last = known[-1] if known else None
    for index in range(len(newest) - 1, -1, -1):
        if newest[index] == last:
            return [*known, *newest[index + 1 :]]
    return list(newest)


class EventLog(VerticalScroll):
    """The last events, newest last; follows the newest until the reader scrolls up."""

    DEFAULT_CSS = """
    EventLog {
        height: 1fr;
        & > Static { height: auto; min-height: 100%; }
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._events: list[Event] = []
        self._large: EventsScreen | None = None

    def compose(self) -> ComposeResult:
        """The text."""
        yield Static(_NOTHING, markup=False)

    def on_mount(self) -> None:
        """Stay with the newest."""
        self.anchor()

    def show_events(self, events: Sequence[Event]) -> None:
        """Bring the log up to date: all events of the newest state, oldest first. The widget must be mounted."""
        if self._large is not None and self._large.is_running and self._large.log_widget.is_mounted:
            self._large.log_widget.show_events(events)
        together = joined(self._events, events)
        if together == self._events:
            return
        if len(together) > _MOST + _SLACK and self.is_vertical_scroll_end:
            together = together[-_MOST:]
        self._events = together
        self.query_one(Static).update(_text(together) if together else _NOTHING)

    def action_enlarge(self) -> None:
        """Open the log on the whole screen; it goes on there, escape closes it."""
        self._large = EventsScreen(self._events)
        self.app.push_screen(self._large)


class EventsScreen(ModalScreen[None]):
    """The log on the whole screen.

    Args:
        events: What it begins with.
    """

    DEFAULT_CSS = """
    EventsScreen {
        & > EventLog { border: round $primary; padding: 0 1; background: $surface; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,e,q", "dismiss", "Close")]

    def __init__(self, events: Sequence[Event]) -> None:
        super().__init__()
        self._events = tuple(events)
        self.log_widget = EventLog()

    def compose(self) -> ComposeResult:
        """The log and the keys."""
        yield self.log_widget
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Show what there is."""
        self.log_widget.border_title = "events"
        self.log_widget.show_events(self._events)
        self.log_widget.focus()


def _text(events: Sequence[Event]) -> Text:
    lines = Text()
    shown_day = amounts.day(time.time())
    for event in events:
        day = amounts.day(event.time)
        if day != shown_day:
            lines.append(f"── {day} ──\n", "dim")
            shown_day = day
        lines.append(f"{amounts.clock(event.time):<8}  ", "dim")
        lines.append_text(fitted(event.what)).append("\n")
    lines.right_crop(1)
    return lines
