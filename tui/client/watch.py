"""What the screen knows of the head, kept up to date: the newest state, its history, and whether the head is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textual.message import Message

from tui.client.history import History
from tui.client.state import Event, Fleet


@dataclass(frozen=True, slots=True)
class Connection:
    """Whether the head answers."""

    state: Literal["none", "looking", "up", "gone", "locked"]
    """None is chosen; not tried yet; answering; not answering (it is tried again); wanting an API key."""
    url: str
    why: str = ""


class ConnectionChanged(Message):
    """Sent to the app when the head comes, goes, or wants a key."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection = connection


class FleetChanged(Message):
    """Sent to the app with each new state, about twice a second. The app hands it to both panes."""

    def __init__(self, fleet: Fleet, history: History, news: tuple[Event, ...]) -> None:
        super().__init__()
        self.fleet, self.history = fleet, history
        self.news = news
        """Events that happened since the state before; none with the first state."""
