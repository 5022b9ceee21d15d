"""Questions that others ask too."""

from __future__ import annotations

from typing import Any

import pytest
from textual.app import App
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from tui.dialogs.choice import Choice, ChoiceDialog, ConfirmDialog
from tui.dialogs.text_input import TextInputDialog

NASTY = "[red]pc-2[/red] \x1b[2J[/]"


class Asking(App[None]):
    """Asks one question."""

    def __init__(self, dialog: ModalScreen[Any]) -> None:
        super().__init__()
        self.dialog, self.answers = dialog, []

    def on_mount(self) -> None:
        self.push_screen(self.dialog, self.answers.append)


@pytest.mark.parametrize(
    ("keys", "dangerous", "answer"),
    [
        (["enter"], False, True),
        (["enter"], True, False),
        (["left", "enter"], True, True),
        (["y"], True, True),
        (["n"], False, False),
        (["escape"], False, None),
    ],
)
async def test_confirm(keys: list[str], dangerous: bool, answer: bool | None) -> None:
    app = Asking(ConfirmDialog(NASTY, NASTY, yes=NASTY, dangerous=dangerous))
    async with app.run_test(size=(60, 20)) as pilot:
        assert app.screen.query_one(".title", Static).render().plain == "[red]pc-2[/red] �[2J[/]"
        await pilot.press(*keys)
    assert app.answers == [answer]


async def test_choice_by_mouse() -> None:
    app = Asking(ChoiceDialog("Which?", "", (Choice("a", "A"), Choice("b", NASTY), Choice("c", "C"))))
    async with app.run_test(size=(60, 20)) as pilot:
        assert str(app.screen.query_one("#b", Button).label) == "[red]pc-2[/red] �[2J[/]"
        await pilot.click("#b")
    assert app.answers == ["b"]


async def test_a_line_of_text_that_is_checked() -> None:
    app = Asking(TextInputDialog("Name?", value="old", check=lambda text: None if text else "[b]Not empty[/b]"))
    async with app.run_test(size=(60, 20)) as pilot:
        app.screen.query_one(Input).value = "  "
        await pilot.press("enter")
        problem = app.screen.query_one(".problem", Static)
        assert problem.display and "[b]Not empty[/b]" in problem.render().plain
        await pilot.press("n", "e", "w")
        assert not problem.display
        await pilot.click("#done")
    assert app.answers == ["new"]


async def test_a_line_of_text_that_is_not_given() -> None:
    app = Asking(TextInputDialog("Name?", value="old"))
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.press("x", "escape")
    assert app.answers == [None]
