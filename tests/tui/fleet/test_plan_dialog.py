import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from dialog_head import BROKEN_MARKUP, MARKUP, StandInClient, prediction, preview, shown, text_of
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Button, Checkbox, Input, Static

from tui.client.plan import Plan, Wish
from tui.fleet import plan_dialog
from tui.fleet.plan_dialog import PlanDialog
from tui.fleet.plan_view import shares


class _App(App[None]):
    def __init__(self, client: StandInClient) -> None:
        super().__init__()
        self.client = client
        self.results: list[bool | None] = []

    def on_mount(self) -> None:
        self.push_screen(PlanDialog(self.client), self.results.append)


async def _settle(pilot: Pilot[Any]) -> None:
    await pilot.pause()
    await pilot.app.workers.wait_for_complete([worker for worker in pilot.app.workers if worker.group == "plan"])
    await pilot.pause()


async def _until(pilot: Pilot[Any], holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await pilot.pause(0.02)


async def _answered(pilot: Pilot[Any], app: _App, *asked: dict[str, Any]) -> None:
    """Wait until the dialog has asked for these plans, all in all, and shows the last one."""
    await _until(pilot, lambda: len(app.client.asked) >= len(asked))
    assert app.client.asked == list(asked)
    await _settle(pilot)


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (140, 45)])
async def test_the_plan_of_the_wish_as_it_is(size: tuple[int, int]) -> None:
    app = _App(StandInClient())
    async with app.run_test(size=size) as pilot:
        await _settle(pilot)
        assert app.client.asked == [{}]
        assert app.screen.query_one("#users", Input).value == "4"
        assert app.screen.query_one("#context", Input).value == "4096"
        screen = shown(app)
        for text in ("users", "context", "stages", "replicas", "30.0 tok/s", "now 25.0", "+20 %", "0–19", "Apply"):
            assert text in screen
        await pilot.pause(0.6)
        assert app.client.asked == [{}]  # filling in the form asked nothing
        for button in app.screen.query(Button):
            assert button.region.bottom <= size[1] and button.region.right <= size[0]


async def test_all_there_is_of_a_plan_with_names_as_text() -> None:
    app = _App(StandInClient())
    async with app.run_test(size=(140, 45)) as pilot:
        await _settle(pilot)
        plan = text_of(app, "#plan")
        for text in ("4 users", "16k tokens", "pc-1", MARKUP, "20–29 (10)", "3.0 GB"):
            assert text in plan
        assert f"slow {MARKUP}" in plan and "24.0 (-20 %)" in plan  # left out, and what it would give
        assert "does not fit" in plan and "15.0 (-50 %)" in plan  # without a node
        assert f"not measured yet, so not planned with: {MARKUP}" in plan


async def test_typing_asks_once_and_only_for_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    app = _App(StandInClient())
    async with app.run_test(size=(80, 24)) as pilot:
        await _settle(pilot)
        app.screen.query_one("#users", Input).focus()
        with monkeypatch.context() as patch:
            patch.setattr(plan_dialog, "_PAUSE", 60.0)  # however slowly these keys come
            await pilot.press("end", "backspace", "1")
            await pilot.pause()
        app.client.may_answer.clear()  # not before the button was looked at
        await pilot.press("2")
        assert app.screen.query_one("#apply", Button).disabled  # what is shown is of another wish
        app.client.may_answer.set()
        await _answered(pilot, app, {}, {"users": 12})
        assert not app.screen.query_one("#apply", Button).disabled
        assert "yes" in shown(app)
        app.screen.query_one(Checkbox).value = False
        await _answered(pilot, app, {}, {"users": 12}, {"users": 12, "replicas": False})
        assert "no" in shown(app) and "yes" not in shown(app)


async def test_a_plan_that_does_not_fit_says_what_the_head_says() -> None:
    app = _App(StandInClient())
    async with app.run_test(size=(60, 20)) as pilot:
        await _settle(pilot)
        app.client.refusal = f"context: 8 GB are wanted and 6 GB there {BROKEN_MARKUP}"
        app.screen.query_one("#context", Input).value = "900000"
        await _answered(pilot, app, {}, {"context": 900_000})
        assert "✗ context: 8 GB are wanted and 6 GB there" in shown(app) and "[/nonsense]" in shown(app)
        assert app.screen.query_one("#apply", Button).disabled
        assert "0–19" not in shown(app)  # nor is another plan shown
        await pilot.press("ctrl+s")
        await pilot.pause()
        assert isinstance(app.screen, PlanDialog)
        app.client.refusal = None
        app.screen.query_one("#context", Input).value = "8192"
        await _answered(pilot, app, {}, {"context": 900_000}, {"context": 8192})
        assert "✗" not in shown(app)
        assert app.screen.query_one("#context", Input).value == "8192"


async def test_a_number_that_is_none_is_not_asked_for() -> None:
    app = _App(StandInClient())
    async with app.run_test(size=(80, 24)) as pilot:
        await _settle(pilot)
        for value in ("0", "-3", "-"):
            app.screen.query_one("#problem", Static).display = False
            app.screen.query_one("#users", Input).value = value
            await _until(pilot, lambda: "users: a whole number from 1 on is wanted" in shown(app))
        assert app.client.asked == [{}]


async def test_apply_asks_first_and_applies_what_was_shown() -> None:
    app = _App(StandInClient())
    async with app.run_test(size=(80, 24)) as pilot:
        await _settle(pilot)
        app.screen.query_one("#users", Input).value = "8"
        await _answered(pilot, app, {}, {"users": 8})
        await pilot.click("#apply")
        await pilot.pause()
        assert not isinstance(app.screen, PlanDialog)
        await pilot.press("n")
        await pilot.pause()
        assert app.client.applied == [] and isinstance(app.screen, PlanDialog)
        await pilot.press("ctrl+s")
        await pilot.pause()
        await pilot.press("y")
        await pilot.pause()
        await pilot.pause()
        assert app.client.applied == [{"users": 8}]
        assert app.results == [True]


async def test_an_apply_that_fails_keeps_the_form() -> None:
    app = _App(StandInClient())
    async with app.run_test(size=(80, 24)) as pilot:
        await _settle(pilot)
        app.client.refusal = "a node just left"
        await pilot.press("ctrl+s")
        await pilot.pause()
        await pilot.press("y")
        await pilot.pause()
        await pilot.pause()
        assert "✗ a node just left" in shown(app)
        assert isinstance(app.screen, PlanDialog) and app.results == []
        await pilot.press("escape")
        await pilot.pause()
        assert app.results == [False]


async def test_the_form_opens_with_the_first_plan_or_the_reason_why_there_is_none() -> None:
    client = StandInClient()
    client.may_answer.clear()
    client.refusal = "plan: no node is measured yet"
    app = _App(client)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "planning…" in shown(app)
        assert app.screen.query_one("#users").disabled or app.screen.query_one("#form").disabled
        client.may_answer.set()
        await _settle(pilot)
        assert "✗ plan: no node is measured yet" in shown(app)
        client.refusal = None
        await pilot.press("7")
        await _answered(pilot, app, {}, {"users": 7})
        assert "30.0 tok/s" in shown(app)


async def test_an_answer_to_an_older_form_cannot_be_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    app = _App(StandInClient())
    async with app.run_test(size=(80, 24)) as pilot:
        await _settle(pilot)
        app.client.may_answer.clear()
        app.screen.query_one("#users", Input).value = "5"
        await _until(pilot, lambda: app.client.asked[-1] == {"users": 5})
        with monkeypatch.context() as patch:
            patch.setattr(plan_dialog, "_PAUSE", 60.0)  # not before the button was looked at
            app.screen.query_one("#users", Input).value = "6"
            await pilot.pause()
            app.client.may_answer.set()
            await pilot.pause(0.1)
            assert app.screen.query_one("#apply", Button).disabled
        app.screen.query_one("#users", Input).value = "06"
        await _answered(pilot, app, {}, {"users": 5}, {"users": 6})
        assert not app.screen.query_one("#apply", Button).disabled


async def test_the_plan_at_work_and_none_at_work_are_told() -> None:
    client = StandInClient()
    client.preview = preview(wish=Wish(stages=2), is_current=True)
    app = _App(client)
    async with app.run_test(size=(80, 24)) as pilot:
        await _settle(pilot)
        assert "✓ this plan is at work" in shown(app)
        assert app.screen.query_one("#stages", Input).value == "2"
        client.preview = preview(wish=Wish(stages=2), current=None)
        app.screen.query_one("#users", Input).value = "5"
        await _until(pilot, lambda: "nothing is at work now" in shown(app))


async def test_a_chain_of_many_stages_is_drawn_in_rows() -> None:
    client = StandInClient()
    chain = client.preview.plan.chains[0]
    stages = tuple(
        stage.model_copy(update={"node": f"{number:02}", "first_layer": number, "end_layer": number + 1})
        for number, stage in enumerate(chain.stages * 10)
    )
    plan = Plan(chains=(chain.model_copy(update={"stages": stages}),), prediction=prediction(10))
    client.preview = client.preview.model_copy(update={"plan": plan, "nodes": {}})
    app = _App(client)
    async with app.run_test(size=(60, 20)) as pilot:
        await _settle(pilot)
        assert "█████" in shown(app) and "▒▒▒▒▒" in shown(app)
        assert "19–19 (1)" in text_of(app, "#plan")


@given(st.lists(st.integers(1, 200), min_size=1, max_size=40), st.integers(1, 300), st.integers(0, 9))
def test_shares_add_up(weights: list[int], width: int, least: int) -> None:
    cells = shares(weights, width, least)
    assert sum(cells) == width and len(cells) == len(weights)
    assert min(cells) >= (least if least * len(weights) <= width else 0)


async def test_a_number_of_stages_can_be_left_to_the_planner_again() -> None:
    client = StandInClient()
    client.preview = preview(wish=Wish(stages=2))
    app = _App(client)
    async with app.run_test(size=(80, 24)) as pilot:
        await _settle(pilot)
        app.screen.query_one("#stages", Input).value = ""
        await _answered(pilot, app, {}, {"stages": 0})
        app.screen.query_one("#users", Input).value = ""
        await _until(pilot, lambda: "users: a whole number from 1 on is wanted" in shown(app))
