"""All keys on one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from tui.dialogs.dialog import Dialog, title


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """Keys that belong together."""

    name: str
    keys: tuple[tuple[str, str], ...]
    """As shown, and what it does."""


class HelpDialog(Dialog[None]):
    """Lists keys; scrolls.

    Args:
        groups: What there is to list.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("f1,q,enter", "cancel", "Close", show=False)]
    DEFAULT_CSS = """
    HelpDialog .group {
        width: 1fr;
        margin-bottom: 1;
    }
    """

    def __init__(self, groups: Sequence[KeyGroup]) -> None:
        super().__init__()
        self._groups = groups

    def compose(self) -> ComposeResult:
        """A list for each group."""
        with VerticalScroll(classes="box"):
            yield title("Keys (Esc closes)")
            width = max((len(key) for group in self._groups for key, _ in group.keys), default=0)
            for group in self._groups:
                lines = [Content.styled(group.name, "bold underline")]
                lines += [
                    Content.assemble((f"{key:>{width}}", "bold"), f"  {description}") for key, description in group.keys
                ]
                yield Static(Content("\n").join(lines), classes="group")
            yield Static(
                "The mouse works too: click tabs, rows, buttons and the keys at the bottom. Your terminal's own "
                "selection: hold Shift while dragging.",
                markup=False,
            )
