from typing import ClassVar

import pytest
from dialog_head import NASTY, shown
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.widgets import Button

from tui.client.state import PendingNode
from tui.fleet.pending_list import PendingList


class _App(App[None]):
    BINDINGS: ClassVar[list[BindingType]] = [("a", "pending('approve')", ""), ("x", "pending('refuse')", "")]

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str]] = []

    def compose(self) -> ComposeResult:
        yield Button("elsewhere", id="elsewhere")
        yield PendingList()

    def action_pending(self, what: str) -> None:
        getattr(self.query_one(PendingList), f"action_{what}")()

    def on_pending_list_approve_requested(self, message: PendingList.ApproveRequested) -> None:
        self.asked.append(("approve", message.code))

    def on_pending_list_refuse_requested(self, message: PendingList.RefuseRequested) -> None:
        self.asked.append(("refuse", message.code))


def _pending(*codes: str) -> list[PendingNode]:
    return [PendingNode(code=code, name=f"pc {code}", address="192.168.1.7", waiting_seconds=187) for code in codes]


async def test_nobody_waits_nothing_shows() -> None:
    app = _App()
    async with app.run_test() as pilot:
        pending = app.query_one(PendingList)
        assert not pending.display
        pending.show_pending(_pending("AB-1"))
        await pilot.pause()
        assert pending.display
        for text in ("AB-1", "pc AB-1", "192.168.1.7", "waits 3:07 min"):
            assert text in shown(app)
        assert "shut out" not in shown(app)
        pending.show_pending([])
        await pilot.pause()
        assert not pending.display and "AB-1" not in shown(app)


@pytest.mark.parametrize("size", [(60, 20), (80, 24)])
async def test_buttons_by_mouse(size: tuple[int, int]) -> None:
    app = _App()
    async with app.run_test(size=size) as pilot:
        app.query_one(PendingList).show_pending(_pending("AB-1", "CD-2"))
        await pilot.pause()
        await pilot.click(app.query(".approve").last(Button))
        await pilot.click(app.query(".refuse").first(Button))
        await pilot.pause()
        assert app.asked == [("approve", "CD-2"), ("refuse", "AB-1")]


async def test_keys_mean_the_row_with_the_focus_and_never_a_guess() -> None:
    app = _App()
    async with app.run_test() as pilot:
        pending = app.query_one(PendingList)
        pending.show_pending(_pending("AB-1", "CD-2"))
        await pilot.pause()
        pending.focus()
        await pilot.press("a")
        assert app.asked == []  # it selected the first
        assert pending.selected is not None and pending.selected.code == "AB-1"
        await pilot.press("tab", "tab", "a", "x")
        assert app.asked == [("approve", "CD-2"), ("refuse", "CD-2")]


async def test_the_only_one_needs_no_focus() -> None:
    app = _App()
    async with app.run_test() as pilot:
        pending = app.query_one(PendingList)
        pending.show_pending(_pending("AB-1"))
        await pilot.pause()
        pending.action_approve()
        await pilot.pause()
        assert app.asked == [("approve", "AB-1")]


async def test_a_row_that_goes_does_not_hand_its_focus_to_another_node() -> None:
    app = _App()
    async with app.run_test() as pilot:
        pending = app.query_one(PendingList)
        pending.show_pending(_pending("AB-1", "CD-2", "EF-3"))
        await pilot.pause()
        app.query(".approve").first(Button).focus()
        await pilot.pause()
        pending.show_pending(_pending("CD-2", "EF-3"))
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        assert app.asked == []
        assert pending.selected is None


async def test_updates_keep_the_focus() -> None:
    app = _App()
    async with app.run_test() as pilot:
        pending = app.query_one(PendingList)
        pending.show_pending(_pending("AB-1", "CD-2"))
        await pilot.pause()
        app.query(".refuse").last(Button).focus()
        later = [
            node.model_copy(update={"waiting_seconds": 3840, "is_forgotten": True}) for node in _pending("AB-1", "CD-2")
        ]
        pending.show_pending(later)
        await pilot.pause()
        assert pending.selected is not None and pending.selected.code == "CD-2"
        assert "waits 1:04 h" in shown(app) and "! shut out before" in shown(app)


@pytest.mark.parametrize("size", [(60, 20), (80, 24)])
async def test_foreign_text_stays_text(size: tuple[int, int]) -> None:
    app = _App()
    async with app.run_test(size=size) as pilot:
        nodes = [PendingNode(code=str(number), name=name, address=name) for number, name in enumerate(NASTY)]
        app.query_one(PendingList).show_pending(nodes)
        await pilot.pause()
        screen = shown(app)
        assert "[bold red]pc[/]" in screen
        assert "\x1b" not in screen and "\u202e" not in screen
        assert all(button.region.right <= size[0] for button in app.query(Button))


async def test_a_flood_is_counted() -> None:
    app = _App()
    async with app.run_test(size=(80, 60)) as pilot:
        pending = app.query_one(PendingList)
        pending.show_pending(_pending(*(f"N-{number}" for number in range(300))))
        await pilot.pause()
        assert len(app.query(".approve")) == 50
        pending.scroll_end(animate=False)
        await pilot.pause()
        assert "and 250 more" in shown(app)
