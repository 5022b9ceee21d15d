"""A node in detail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Footer, LoadingIndicator, Static, TabbedContent, TabPane

from tui.client.errors import HeadError
from tui.client.head_client import HeadClient
from tui.client.plain import clean
from tui.client.plan import NodeDetail
from tui.client.state import Node
from tui.fleet import node_view
from tui.fleet.keeping import shut_out_question
from tui.fleet.texts import fitted


class NodeDialog(ModalScreen[str | None]):
    """Profile, log and doctor of a node; dismissed with its name when it was shut out, else with None.

    Args:
        client: The head to ask.
        node: What is known already; shown at once.
        names: Names of the fleet's nodes by key.
    """

    DEFAULT_CSS = """
    NodeDialog {
        align: center middle;
        & > Vertical {
            width: 100%; max-width: 120; height: 100%; padding: 0 1;
            border: round $primary; background: $surface;
        }
        & #problem { height: auto; max-height: 4; color: $text-warning; display: none; }
        & #asking { height: 1; }
        & TabbedContent { height: 1fr; }
        & TabPane { height: 1fr; padding: 0; }
        & TabPane > VerticalScroll { height: 1fr; }
        & #log { min-height: 100%; }
        & #buttons { height: 1; align-horizontal: right; }
        & #buttons Button { margin-left: 2; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close"),
        Binding("r", "refresh", "Refresh"),
        Binding("d", "shut_out", "Shut out"),
    ]

    def __init__(self, client: HeadClient, node: Node, names: Mapping[str, str]) -> None:
        super().__init__()
        self._client, self._node, self._names = client, node, names
        self._is_loaded = False
        self._is_shutting_out = False

    def compose(self) -> ComposeResult:
        """Tabs and buttons."""
        with Vertical() as frame:
            frame.border_title = fitted(self._node.name, 48)
            yield LoadingIndicator(id="asking")
            yield Static(id="problem", markup=False)
            with TabbedContent():
                for title, name in (("Profile", "profile"), ("Log", "log"), ("Doctor", "doctor")):
                    with TabPane(title, id=f"{name}-tab"), VerticalScroll(id=f"{name}-scroll"):
                        yield Static("asking the node…", id=name, markup=False)
            with Horizontal(id="buttons"):
                yield Button("Refresh", id="refresh", compact=True)
                yield Button("Shut out", variant="error", id="shut-out", compact=True, disabled=self._node.is_head)
                yield Button("Close", id="close", compact=True)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Show what is known, and ask for the rest."""
        self.query_one("#log-scroll").anchor()  # its end is in view until the reader scrolls
        self.query_one("#profile", Static).update(node_view.profile(NodeDetail(node=self._node), self._names))
        self.action_refresh()

    @on(Button.Pressed, "#refresh")
    def action_refresh(self) -> None:
        """Ask the node again; what is shown stays until it answers."""
        self.query_one("#asking").display = True
        self.run_worker(self._load(), group="load", exclusive=True)

    @on(Button.Pressed, "#shut-out")
    def action_shut_out(self) -> None:
        """Shut the node out of the fleet; asks first."""
        if not self._is_shutting_out:
            self.run_worker(self._shut_out(), group="shut out")

    @on(Button.Pressed, "#close")
    def action_close(self) -> None:
        """Back to the fleet."""
        if not self._is_shutting_out:
            self.dismiss(None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The head cannot shut out itself."""
        return action != "shut_out" or not self._node.is_head

    async def _load(self) -> None:
        try:
            detail = await self._client.node(self._node.key)
        except HeadError as error:
            self._show_problem(str(error))
            if not self._is_loaded:
                for name in ("log", "doctor"):
                    self.query_one(f"#{name}", Static).update("unknown: the node could not be asked")
        else:
            self._show(detail)
        self.query_one("#asking").display = False

    def _show(self, detail: NodeDetail) -> None:
        self._show_problem(detail.problem)
        self.query_one("#profile", Static).update(node_view.profile(detail, self._names))
        self.query_one("#doctor", Static).update(node_view.checks(detail.checks))
        self.query_one("#log", Static).update(node_view.log(detail.log))
        self._is_loaded = True

    def _show_problem(self, problem: str | None) -> None:
        line = self.query_one("#problem", Static)
        line.display = bool(problem)
        line.update(Text(f"! {clean(problem or '')}"))

    async def _shut_out(self) -> None:
        if not await self.app.push_screen_wait(shut_out_question(self._node)):
            return
        self._is_shutting_out = True
        try:
            name = await self._client.forget(self._node.key)
        except HeadError as error:
            self._show_problem(str(error))
        else:
            self.pop_until_active()  # the palette or the help may have been opened above
            self.dismiss(name)
        finally:
            self._is_shutting_out = False
