"""A question with a few answers, and one with yes and no."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Button

from tui.dialogs.dialog import Dialog, button, buttons, title, words

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Choice:
    """An answer that can be given."""

    name: str
    label: str
    variant: str = "default"
    """Of its button: default, primary, success, warning or error."""


class ChoiceDialog(Dialog[str]):
    """Asks; answers the name of the choice, or None.

    Args:
        question: The title.
        text: What there is to know before.
        choices: The first has the focus.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
    ]

    def __init__(self, question: str, text: str, choices: tuple[Choice, ...]) -> None:
        super().__init__()
        self._question, self._text, self._choices = question, text, choices

    def compose(self) -> ComposeResult:
        """Title, text, buttons."""
        with VerticalScroll(classes="box", can_focus=False):
            yield title(self._question)
            if self._text:
                yield words(self._text)
            yield buttons(*(button(each.label, each.name, variant=each.variant) for each in self._choices))

    def on_mount(self) -> None:
        """The first choice is a key away."""
        self.query(Button).first().focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer."""
        event.stop()
        self.dismiss(event.button.id)


class ConfirmDialog(Dialog[bool]):
    """Asks whether to do something; answers True, False or None (Escape). `y` and `n` answer too.

    Args:
        question: The title, e.g. "Forget pc-2?".
        text: What will happen.
        yes: What the button that does it says.
        dangerous: It cannot be undone: the other button has the focus.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n", "answer(False)", "No"),
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
    ]

    def __init__(self, question: str, text: str = "", *, yes: str = "Yes", dangerous: bool = False) -> None:
        super().__init__()
        self._question, self._text, self._yes, self._dangerous = question, text, yes, dangerous

    def compose(self) -> ComposeResult:
        """Title, text, buttons."""
        with VerticalScroll(classes="box", can_focus=False):
            yield title(self._question)
            if self._text:
                yield words(self._text)
            yield buttons(
                button(f"{self._yes} (y)", "yes", variant="error" if self._dangerous else "primary"),
                button("No (n)", "no"),
            )

    def on_mount(self) -> None:
        """What is safe is a key away."""
        self.query_one("#no" if self._dangerous else "#yes").focus()

    def action_answer(self, yes: bool) -> None:
        """Answer by key."""
        self.dismiss(yes)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer by button."""
        event.stop()
        self.dismiss(event.button.id == "yes")
