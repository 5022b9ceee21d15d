"""Asks for a line of text."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Button, Input

from tui.dialogs.dialog import Dialog, button, buttons, problem, title, words


class TextInputDialog(Dialog[str]):
    """Asks for a line; answers it, or None.

    Args:
        question: The title.
        text: What there is to know before.
        value: What is there to begin with.
        done: What the button says.
        check: Says what is wrong with a line, if something is.
        secret: Do not show what is typed.
    """

    def __init__(
        self,
        question: str,
        text: str = "",
        *,
        value: str = "",
        done: str = "OK",
        check: Callable[[str], str | None] | None = None,
        secret: bool = False,
    ) -> None:
        super().__init__()
        self._question, self._text, self._value, self._done = question, text, value, done
        self._check, self._secret = check, secret

    def compose(self) -> ComposeResult:
        """Title, text, the line, buttons."""
        with VerticalScroll(classes="box", can_focus=False):
            yield title(self._question)
            if self._text:
                yield words(self._text)
            yield Input(self._value, password=self._secret, id="line")
            yield problem()
            yield buttons(button(self._done, "done", variant="primary"), button("Cancel (Esc)", "cancel"))

    def on_input_changed(self, event: Input.Changed) -> None:
        """What was wrong is being mended."""
        event.stop()
        self.show_problem("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter is the button."""
        event.stop()
        self._answer()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer, or not."""
        event.stop()
        if event.button.id == "done":
            self._answer()
        else:
            self.dismiss(None)

    def _answer(self) -> None:
        value = self.query_one(Input).value.strip()
        if wrong := self._check(value) if self._check else None:
            self.show_problem(wrong)
        else:
            self.dismiss(value)
