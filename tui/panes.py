"""The two tabs, and which of them is seen."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from tui.client.head_client import HeadClient
from tui.client.watch import Connection, FleetChanged

SWITCHER = "panes"


@runtime_checkable
class Pane(Protocol):
    """What the app tells a tab."""

    client: HeadClient | None

    def show_connection(self, connection: Connection) -> None:
        """The head came, went, or wants a key."""

    def show_fleet(self, change: FleetChanged) -> None:
        """A new state."""


def current_pane(screen: Screen[object]) -> Widget | None:
    """The tab that is seen."""
    switchers = screen.query(f"#{SWITCHER}").results(ContentSwitcher)
    return next((switcher.visible_content for switcher in switchers), None)
