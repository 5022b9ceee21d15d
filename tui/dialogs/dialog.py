"""What all dialogs have in common."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from tui.client.plain import clean

Answer = TypeVar("Answer")


class Dialog(ModalScreen[Answer | None]):
    """A box in the middle; Escape answers None. What it shows is text, never markup.

    A subclass composes its widgets into a container of class `box`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]
    DEFAULT_CSS = """
    Dialog {
        align: center middle;

        .box {
            width: 72;
            max-width: 95%;
            height: auto;
            max-height: 95%;
            padding: 0 1;
            border: round $primary;
            background: $surface;
        }
        .title {
            width: 1fr;
            text-style: bold;
            margin-bottom: 1;
        }
        .text {
            width: 1fr;
            margin-bottom: 1;
        }
        .problem {
            width: 1fr;
            color: $text-error;
        }
        .problem.-none {
            display: none;
        }
        .buttons {
            height: auto;
            width: 1fr;
            align-horizontal: right;
        }
        .buttons Button {
            margin-left: 1;
            min-width: 10;
        }
    }
    """

    def action_cancel(self) -> None:
        """Close without an answer."""
        self.dismiss(None)

    def show_problem(self, text: str) -> None:
        """Say what is wrong; an empty text says that nothing is."""
        problem = self.query_one(".problem", Static)
        problem.set_class(not text, "-none")
        problem.update(Content(f"✗ {clean(text)}" if text else ""))


def title(text: str) -> Static:
    """A dialog's first line."""
    return Static(Content(clean(text)), classes="title")


def words(text: str) -> Static:
    """A paragraph."""
    return Static(Content(clean(text)), classes="text")


def problem() -> Static:
    """Room for what `show_problem` says."""
    return Static(classes="problem -none", markup=False)


def button(label: str, name: str, *, variant: str = "default") -> Button:
    """A button whose label is no markup, known by its id."""
    made = Button(Content(clean(label)), id=name)
    made.variant = variant
    return made


def buttons(*made: Button) -> Horizontal:
    """A row of buttons."""
    return Horizontal(*made, classes="buttons")


__all__ = ["Answer", "ComposeResult", "Dialog", "button", "buttons", "problem", "title", "words"]
