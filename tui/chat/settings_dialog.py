"""The dialog for system prompt and sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Input, Static, TextArea

from tui.chat.settings import NUMBERS, Settings, as_fields, from_fields
from tui.dialogs.dialog import Dialog, button, buttons, problem, title


@dataclass(frozen=True, slots=True)
class ChosenSettings:
    """What the dialog answers."""

    system_prompt: str
    settings: Settings


class SettingsDialog(Dialog[ChosenSettings]):
    """Asks for both; None: left as they were. What was changed is not thrown away by one Escape.

    Args:
        system_prompt: The one there is.
        settings: Those there are.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+s", "keep", "Keep", priority=True)]
    DEFAULT_CSS = """
    SettingsDialog {
        .fields {
            height: 1fr;
        }
        .box {
            height: 95%;
            max-height: 30;
        }
        .row {
            height: auto;
        }
        .label {
            width: 20;
        }
        .wide {
            width: 1fr;
            text-style: bold;
        }
        Input {
            width: 1fr;
        }
        TextArea {
            height: 4;
            border: none;
            padding: 0 1;
            margin-bottom: 1;
        }
        #stop {
            height: 3;
            margin-bottom: 0;
        }
        .error {
            padding-left: 20;
            width: 1fr;
            color: $text-error;
            display: none;
        }
        .error.-shown {
            display: block;
        }
    }
    """

    def __init__(self, system_prompt: str, settings: Settings) -> None:
        super().__init__()
        self._system_prompt = system_prompt
        self._fields = as_fields(settings)
        self._wants_to_leave = False

    def compose(self) -> ComposeResult:
        """The system prompt, the numbers, the stop texts; each with room for what is wrong with it."""
        with Vertical(classes="box"):
            yield title("System prompt and sampling")
            with VerticalScroll(classes="fields", can_focus=False):
                yield _label("System prompt", "wide")
                yield TextArea(self._system_prompt, id="system-prompt", tab_behavior="focus")
                for number in NUMBERS:
                    with Horizontal(classes="row"):
                        yield _label(number.label, "label")
                        yield Input(
                            self._fields[number.name], placeholder=number.default, id=_id(number.name), compact=True
                        )
                    yield _error(number.name)
                yield _label("Stop texts, one a line (\\n is a line break)", "wide")
                yield TextArea(self._fields["stop"], id="stop", tab_behavior="focus")
                yield _error("stop")
            yield problem()
            yield buttons(button("Keep (Ctrl+S)", "keep", variant="primary"), button("Cancel (Esc)", "cancel"))

    def on_mount(self) -> None:
        """What the fields are before anything is typed: an editor may have changed the ends of lines."""
        self._shown = self._filled_in()
        self._shown_prompt = self._prompt.text

    @property
    def _prompt(self) -> TextArea:
        return self.query_one("#system-prompt", TextArea)

    def _filled_in(self) -> dict[str, str]:
        numbers = {number.name: self.query_one(f"#{_id(number.name)}", Input).value for number in NUMBERS}
        return {**numbers, "stop": self.query_one("#stop", TextArea).text}

    @on(Input.Changed)
    @on(TextArea.Changed)
    def _check(self, event: Input.Changed | TextArea.Changed) -> None:
        """Say what is wrong while it is typed."""
        event.stop()
        self._wants_to_leave = False
        self.show_problem("")
        self._show_errors(from_fields(self._filled_in())[1])

    def _show_errors(self, errors: dict[str, str]) -> None:
        for name in self._fields:
            label = self.query_one(f"#{_id(name)}-error", Static)
            label.set_class(name in errors, "-shown")
            label.update(Content(f"✗ {errors[name]}" if name in errors else ""))

    @on(Input.Submitted)
    def _next(self, event: Input.Submitted) -> None:
        """Enter goes on to the next field."""
        event.stop()
        self.focus_next()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Keep, or not."""
        event.stop()
        if event.button.id == "keep":
            self.action_keep()
        else:
            self.dismiss(None)

    def action_keep(self) -> None:
        """Answer, if nothing is wrong; else go where it is."""
        fields = self._filled_in()
        settings, errors = from_fields(fields)
        self._show_errors(errors)
        if errors:
            self.show_problem("Not kept yet: see the marked fields.")
            self.query_one(f"#{_id(next(iter(errors)))}").focus()
            return
        text = self._prompt.text
        self.dismiss(ChosenSettings(self._system_prompt if text == self._shown_prompt else text, settings))

    def action_cancel(self) -> None:
        """Leave; what was changed wants a second Escape."""
        is_changed = self._filled_in() != self._shown or self._prompt.text != self._shown_prompt
        if is_changed and not self._wants_to_leave:
            self._wants_to_leave = True
            self.show_problem("Changed: Ctrl+S keeps it, Escape again throws it away.")
        else:
            self.dismiss(None)


def _id(name: str) -> str:
    return name.replace("_", "-")


def _label(text: str, kind: str) -> Static:
    return Static(text, classes=kind, markup=False)


def _error(name: str) -> Static:
    return Static(id=f"{_id(name)}-error", classes="error", markup=False)
