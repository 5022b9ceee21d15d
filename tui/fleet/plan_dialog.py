"""What the fleet would do for other wishes: the plan before it is at work."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Button, Checkbox, Footer, Input, Label, Static

from tui.client.errors import HeadError
from tui.client.head_client import HeadClient
from tui.client.plain import clean
from tui.client.plan import Preview, Wish
from tui.dialogs.choice import ConfirmDialog
from tui.fleet.plan_view import details, summary

_PAUSE = 0.4
"""Seconds without typing before the head is asked: it plans with all it has."""
_NUMBERS = {"users": "how many", "context": "tokens", "stages": "best"}
"""Fields, and what they say where they are blank."""
_BEST = 0
"""What a head takes for as many stages as are best."""


class PlanDialog(ModalScreen[bool]):
    """Preview of a plan; dismissed with True when one was applied.

    Args:
        client: The head that plans.
    """

    DEFAULT_CSS = """
    PlanDialog {
        align: center middle;
        & > Vertical {
            width: 100%; max-width: 110; height: 100%; padding: 0 1;
            border: round $primary; background: $surface;
        }
        & #form { height: 2; }
        & #form > Vertical { width: 1fr; height: 2; margin-right: 1; }
        & #form Label { color: $text-muted; }
        & #form Input { background: $boost; }
        & #problem { height: auto; max-height: 5; color: $text-error; display: none; }
        & #summary { height: auto; min-height: 2; }
        & #details { height: 1fr; }
        & .stale { opacity: 60%; }
        & #buttons { height: 1; align-horizontal: right; }
        & #buttons Button { margin-left: 2; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close"),
        Binding("ctrl+s", "apply", "Apply plan", priority=True),
    ]

    def __init__(self, client: HeadClient) -> None:
        super().__init__()
        self._client = client
        self._wish: Wish | None = None
        """The fleet's wish as it is; the form's differences from it are what is asked for."""
        self._preview: Preview | None = None
        self._previewed: dict[str, Any] = {}
        self._timer: Timer | None = None
        self._is_applying = False

    def compose(self) -> ComposeResult:
        """Form, what the head says to it, buttons."""
        with Vertical() as frame:
            frame.border_title = "plan"
            with Horizontal(id="form", disabled=True):
                for name, placeholder in _NUMBERS.items():
                    with Vertical():
                        yield Label(name)
                        yield Input(placeholder=placeholder, id=name, type="integer", max_length=9, compact=True)
                with Vertical():
                    yield Label("replicas")
                    yield Checkbox("yes", value=True, id="replicas", compact=True)
            yield Static(id="problem", markup=False)
            yield Static("planning…", id="summary", markup=False)
            with VerticalScroll(id="details"):
                yield Static(id="plan", markup=False)
            with Horizontal(id="buttons"):
                yield Button("Apply", variant="primary", id="apply", compact=True, disabled=True)
                yield Button("Close", id="close", compact=True)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Ask for the plan of the wish as it is; its answer fills the form, which opens then."""
        self._ask()

    @on(Checkbox.Changed)
    def _replicas_changed(self) -> None:
        self._name_replicas()

    @on(Input.Changed)
    @on(Checkbox.Changed)
    def _form_changed(self) -> None:
        self.workers.cancel_group(self, "plan")
        self._outdate()
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(_PAUSE, self._ask)

    @on(Input.Submitted)
    def _form_submitted(self) -> None:
        if self._preview is None:
            self._ask()

    @on(Button.Pressed, "#close")
    def action_close(self) -> None:
        """Leave the fleet as it is."""
        if not self._is_applying:
            self.dismiss(False)

    @on(Button.Pressed, "#apply")
    def action_apply(self) -> None:
        """Make the plan that is shown the fleet's."""
        if self._preview is not None and not self._is_applying:
            self.run_worker(self._apply(self._preview, self._previewed), group="apply")

    def _ask(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        try:
            changes = self._changes()
        except ValueError as error:
            self._show_problem(str(error))
            return
        self.query_one("#summary", Static).update("planning…")
        self.run_worker(self._plan(changes), group="plan", exclusive=True)

    async def _plan(self, changes: dict[str, Any]) -> None:
        try:
            preview = await self._client.plan(**changes)
        except HeadError as error:
            self._show_problem(str(error))
        else:
            if self._wish is None and not changes:
                self._wish = preview.wish
                self._fill(preview.wish)
            self._show(preview, changes)
        form = self.query_one("#form")
        if form.disabled:
            form.disabled = False
            self.query_one("#users").focus()

    def _show(self, preview: Preview, changes: dict[str, Any]) -> None:
        self._preview, self._previewed = preview, changes
        self.query_one("#problem").display = False
        self.query_one("#summary", Static).update(summary(preview))
        plan = self.query_one("#plan", Static)
        plan.update(details(preview))
        plan.remove_class("stale")
        plan.display = True
        self.query_one("#apply", Button).disabled = False

    async def _apply(self, preview: Preview, changes: dict[str, Any]) -> None:
        text = "Its chains open, and those at work now end with the answers they are in."
        if not await self.app.push_screen_wait(ConfirmDialog("Apply this plan?", text, yes="Apply")):
            return
        self._is_applying = True
        self.query_one("#apply", Button).disabled = True
        self.query_one("#summary", Static).update("applying…")
        try:
            await self._client.apply(**changes)
        except HeadError as error:
            self._show_problem(str(error))
            self.query_one("#summary", Static).update(summary(preview))
            self.query_one("#apply", Button).disabled = self._preview is None
        else:
            self.pop_until_active()  # the palette or the help may have been opened above
            self.dismiss(True)
        finally:
            self._is_applying = False

    def _changes(self) -> dict[str, Any]:
        """What the form has other than the fleet.

        Raises:
            ValueError: A number is none, or below one.
        """
        changes: dict[str, Any] = {}
        for name in _NUMBERS:
            text = self.query_one(f"#{name}", Input).value.strip()
            if not text and (name == "stages" or self._wish is None):
                if self._wish is not None and self._wish.stages is not None:
                    changes[name] = _BEST
                continue
            value = int(text) if text.isdecimal() else 0
            if value < 1:
                raise ValueError(f"{name}: a whole number from 1 on is wanted")
            if self._wish is None or value != getattr(self._wish, name):
                changes[name] = value
        replicas = self.query_one("#replicas", Checkbox).value
        if self._wish is not None and replicas != self._wish.replicas:
            changes["replicas"] = replicas
        return changes

    def _fill(self, wish: Wish) -> None:
        """Show a wish in the form."""
        with self.prevent(Input.Changed, Checkbox.Changed):
            for name in _NUMBERS:
                value = getattr(wish, name)
                self.query_one(f"#{name}", Input).value = "" if value is None else str(value)
            self.query_one("#replicas", Checkbox).value = wish.replicas
        self._name_replicas()

    def _name_replicas(self) -> None:
        """A box of Textual's tells by its colour alone whether it is ticked."""
        box = self.query_one("#replicas", Checkbox)
        box.label = "yes" if box.value else "no"

    def _outdate(self) -> None:
        """The plan that is shown is not that of the form any more."""
        self._preview = None
        self.query_one("#apply", Button).disabled = True
        self.query_one("#plan").add_class("stale")

    def _show_problem(self, problem: str) -> None:
        line = self.query_one("#problem", Static)
        line.update(Text(f"✗ {clean(problem)}"))
        line.display = True
        self.query_one("#plan").display = self._preview is not None
        if self._preview is None:
            self.query_one("#summary", Static).update("no plan for this")
