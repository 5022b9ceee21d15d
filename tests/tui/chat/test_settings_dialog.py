from __future__ import annotations

from typing import Any

import pytest
from textual.app import App
from textual.widgets import Input, Static, TextArea

from tui.chat.settings import Settings
from tui.chat.settings_dialog import ChosenSettings, SettingsDialog

NOTHING = "nothing yet"


class Host(App[None]):
    answer: Any = NOTHING

    def ask(self, system_prompt: str = "", settings: Settings | None = None) -> None:
        self.push_screen(SettingsDialog(system_prompt, settings or Settings()), lambda answer: self._take(answer))

    def _take(self, answer: ChosenSettings | None) -> None:
        self.answer = answer


def error_of(app: App[None], field: str) -> str:
    label = app.screen.query_one(f"#{field}-error", Static)
    return str(label.content) if label.display else ""


async def test_what_is_filled_in_is_answered() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        app.ask("Be short.", Settings(temperature=0.5))
        await pilot.pause()
        assert app.screen.query_one("#temperature", Input).value == "0.5"
        app.screen.query_one("#system-prompt", TextArea).text = "Be [b]long[/b]."
        app.screen.query_one("#stop", TextArea).text = "END\n\\n\\n"
        app.screen.query_one("#max-tokens", Input).focus()
        await pilot.press(*"64", "ctrl+s")
        await pilot.pause()
    assert app.answer == ChosenSettings(
        "Be [b]long[/b].", Settings(temperature=0.5, max_tokens=64, stop=("END", "\n\n"))
    )


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (140, 45)])
async def test_errors_stand_at_their_field_and_nothing_is_kept_before_they_are_mended(size: tuple[int, int]) -> None:
    app = Host()
    async with app.run_test(size=size) as pilot:
        app.ask()
        await pilot.pause()
        app.screen.query_one("#top-p", Input).focus()
        await pilot.press(*"[7]")
        await pilot.pause()
        assert error_of(app, "top-p") == "✗ must be a number, more than 0 and at most 1, not '[7]'"
        assert error_of(app, "temperature") == ""
        app.screen.query_one("#seed", Input).focus()
        await pilot.press("ctrl+s")
        await pilot.pause()
        assert app.answer == NOTHING
        field = app.screen.query_one("#top-p", Input)
        assert field.has_focus and app.screen.region.contains_region(field.region)
        field.value = "0.9"
        await pilot.pause()
        assert error_of(app, "top-p") == ""
        button = app.screen.query_one("#keep")
        assert app.screen.region.contains_region(button.region)
        await pilot.click("#keep")
        await pilot.pause()
    assert app.answer == ChosenSettings("", Settings(top_p=0.9))


async def test_one_escape_does_not_throw_away_what_was_typed() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        app.ask("a\r\nb")
        await pilot.pause()
        await pilot.press("x", "escape")
        await pilot.pause()
        assert app.answer == NOTHING
        assert "Escape again" in str(app.screen.query_one(".problem", Static).content)
        await pilot.press("escape")
        await pilot.pause()
        assert app.answer is None
        app.answer = NOTHING
        app.ask("a\r\nb")
        await pilot.pause()
        await pilot.press("escape")
        await pilot.pause()
        assert app.answer is None


async def test_a_prompt_that_was_not_touched_stays_as_it_is() -> None:
    app = Host()
    prompt = "one\r\ntwo\u2028three\n"
    async with app.run_test(size=(80, 24)) as pilot:
        app.ask(prompt, Settings(seed=3))
        await pilot.pause()
        await pilot.press("ctrl+s")
        await pilot.pause()
    assert app.answer == ChosenSettings(prompt, Settings(seed=3))


async def test_all_fields_can_be_reached_and_read_by_keyboard() -> None:
    app = Host()
    async with app.run_test(size=(60, 20)) as pilot:
        app.ask()
        await pilot.pause()
        reached = set()
        for _ in range(14):
            focused = app.screen.focused
            assert focused is not None
            assert app.screen.region.contains_region(focused.region)
            reached.add(focused.id)
            await pilot.press("tab")
            await pilot.pause()
        assert {"system-prompt", "temperature", "frequency-penalty", "stop", "keep", "cancel"} <= reached
