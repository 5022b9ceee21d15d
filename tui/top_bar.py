"""The first line of the screen: tabs, model, head, whether it answers, and how fast it is."""

from __future__ import annotations

from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widget import Widget

from tui.choice_label import ChoiceLabel
from tui.client.address import short
from tui.client.history import History
from tui.client.plain import one_line
from tui.client.state import Fleet
from tui.client.watch import Connection

Tab = Literal["chat", "fleet"]
_STATES: dict[str, tuple[str, str]] = {
    "none": ("○ no head", "$text-warning"),
    "looking": ("◌ looking", "$foreground-muted"),
    "up": ("● connected", "$text-success"),
    "gone": ("✗ gone, trying again", "$text-error"),
    "locked": ("▲ wants a key", "$text-warning"),
}
_RATE_SAMPLES = 4


def summary(connection: Connection, fleet: Fleet | None, history: History | None, width: int) -> Content:
    """What fits into a width, the most important last to go: state, rate, head, model."""
    state, style = _STATES[connection.state]
    parts = [Content.styled(state, style)]
    if connection.state == "up" and history is not None:
        recent = list(history.tokens_per_second)[-_RATE_SAMPLES:]
        parts.append(Content(f"{sum(recent) / len(recent) if recent else 0.0:.1f} tok/s"))
    if connection.url:
        parts.insert(0, Content(one_line(short(connection.url), 40)))
    if fleet is not None:
        parts.insert(0, Content.styled(one_line(fleet.model.name, 40), "bold"))
    while len(parts) > 1 and _width(parts) > width:
        # a rate alone is worth less than the state before it
        parts.pop(0 if len(parts) > 2 or connection.state != "up" else -1)
    return Content(" · ").join(parts)


def _width(parts: list[Content]) -> int:
    return sum(part.cell_length for part in parts) + 3 * (len(parts) - 1)


class Summary(Widget):
    """The right part of the line; drawn anew at each width."""

    DEFAULT_CSS = """
    Summary { width: 1fr; height: 1; padding: 0 1; content-align-horizontal: right; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.connection = Connection("looking", "")
        self.fleet: Fleet | None = None
        self.history: History | None = None

    def render(self) -> Content:
        """Draw it."""
        return summary(self.connection, self.fleet, self.history, self.size.width)


class TopBar(Horizontal):
    """Tabs and summary."""

    TABS: ClassVar[dict[Tab, str]] = {"chat": "Chat F2", "fleet": "Fleet F3"}
    DEFAULT_CSS = """
    TopBar { height: 1; dock: top; background: $panel; }
    """

    def compose(self) -> ComposeResult:
        """A label for each tab, then the summary."""
        for tab, label in self.TABS.items():
            yield ChoiceLabel(label, tab, id=f"tab-{tab}")
        yield Summary()

    def show_tab(self, tab: str) -> None:
        """Mark a tab as the one that is seen."""
        for label in self.query(ChoiceLabel):
            label.set_class(label.choice == tab, "-active")

    def show_connection(self, connection: Connection) -> None:
        """The head came, went, or wants a key."""
        shown = self.query_one(Summary)
        if connection.url != shown.connection.url:
            shown.fleet = shown.history = None
        shown.connection = connection
        shown.refresh()

    def show_fleet(self, fleet: Fleet, history: History) -> None:
        """A new state."""
        shown = self.query_one(Summary)
        shown.fleet, shown.history = fleet, history
        shown.refresh()
