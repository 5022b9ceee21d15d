"""Nodes that wait to be let in."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.widgets import Button, Static

from tui import amounts
from tui.client.state import PendingNode
from tui.fleet.texts import fitted

_MOST = 50
"""Rows; whoever knocks more often is counted."""


class _Row(Horizontal):
    """A node with its two buttons."""

    DEFAULT_CSS = """
    _Row {
        height: auto;
        & > Static { width: 1fr; height: auto; }
        & > Button { width: auto; min-width: 9; margin-left: 1; }
        &:focus-within { background: $boost; }
    }
    """

    def __init__(self, node: PendingNode) -> None:
        super().__init__()
        self.node = node

    def compose(self) -> ComposeResult:
        """Text, approve, refuse."""
        yield Static(self._text(), markup=False)
        yield Button("Approve", variant="success", compact=True, classes="approve")
        yield Button("Refuse", variant="error", compact=True, classes="refuse")

    def show(self, node: PendingNode) -> None:
        """Another state of the same node."""
        before, self.node = self._text(), node
        if self.is_mounted and self._text() != before:  # each update is a new layout of the screen
            self.query_one(Static).update(self._text())

    def _text(self) -> Text:
        node = self.node
        text = Text.assemble(fitted(node.code, 16, "bold"), "  ", fitted(node.name or "nameless", 32))
        text.append_text(Text.assemble("  ", fitted(node.address, 48), style="dim"))
        text.append(f"  waits {amounts.duration(node.waiting_seconds)}", "dim")
        if node.is_forgotten:
            text.append("  ! shut out before", "bold")
        return text


class PendingList(VerticalScroll):
    """One row a node, with buttons; hidden (display off) while nobody waits.

    The code is what both sides show: who asks "let it in?" should show it again.
    """

    DEFAULT_CSS = """
    PendingList {
        height: auto;
        max-height: 8;
        & > .more { color: $text-muted; height: 1; display: none; }
    }
    """

    class ApproveRequested(Message):
        """Somebody wants the node with this code let in."""

        def __init__(self, code: str) -> None:
            super().__init__()
            self.code = code

    class RefuseRequested(Message):
        """Somebody wants the node with this code out of the list."""

        def __init__(self, code: str) -> None:
            super().__init__()
            self.code = code

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.display = False
        self._rows: dict[str, _Row] = {}

    @property
    def selected(self) -> PendingNode | None:
        """The node of the row that has the focus, else the only one: nobody lets in one of several by accident."""
        for row in self._rows.values():
            if row.has_focus_within:
                return row.node
        return next(iter(self._rows.values())).node if len(self._rows) == 1 else None

    def compose(self) -> ComposeResult:
        """The line that counts the rest; rows go before it."""
        yield Static(classes="more", markup=False)

    def show_pending(self, pending: Sequence[PendingNode]) -> None:
        """Bring the rows up to date; the widget must be mounted."""
        nodes = {node.code: node for node in pending[:_MOST]}
        gone = [self._rows.pop(code) for code in list(self._rows) if code not in nodes]
        if any(row.has_focus_within for row in gone):
            self.focus()  # not on to the next row, where a key would now let in another node
        for row in gone:
            row.remove()
        for code, node in nodes.items():
            if code in self._rows:
                self._rows[code].show(node)
            else:
                self._rows[code] = _Row(node)
                self.mount(self._rows[code], before=".more")
        self.display = bool(nodes)
        rest = len(pending) - len(nodes)
        more = self.query_one(".more", Static)
        if more.display or rest:
            more.display = rest > 0
            more.update(f"and {rest} more")

    def action_approve(self) -> None:
        """Ask that the selected node is let in; where several wait, the first press selects one."""
        self._ask(self.ApproveRequested, ".approve")

    def action_refuse(self) -> None:
        """Ask that the selected node is not listed any more."""
        self._ask(self.RefuseRequested, ".refuse")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """A button of a row."""
        event.stop()
        row = event.button.parent
        assert isinstance(row, _Row)
        wanted = self.ApproveRequested if event.button.has_class("approve") else self.RefuseRequested
        self.post_message(wanted(row.node.code))

    def _ask(self, message: type[ApproveRequested] | type[RefuseRequested], button: str) -> None:
        node = self.selected
        if node is not None:
            self.post_message(message(node.code))
        elif self._rows:
            next(iter(self._rows.values())).query_one(button).focus()
