from types import SimpleNamespace

import pytest
from dialog_head import NASTY, shown
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult

from tui import amounts
from tui.client.state import Event
from tui.fleet import event_log
from tui.fleet.event_log import EventLog, EventsScreen, joined

_NOW = 1_768_500_000.0


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No midnight comes in the middle of a test."""
    monkeypatch.setattr(event_log, "time", SimpleNamespace(time=lambda: _NOW))


class _App(App[None]):
    def compose(self) -> ComposeResult:
        yield EventLog()


def _events(first: int, end: int) -> list[Event]:
    return [Event(time=_NOW + number, what=f"event {number}.") for number in range(first, end)]


@given(st.lists(st.integers(1, 5), max_size=12), st.integers(6, 9))
def test_a_bounded_list_seen_often_enough_loses_and_repeats_nothing(comes: list[int], bound: int) -> None:
    all_events = _events(0, sum(comes))
    known: list[Event] = []
    end = 0
    for number in comes:
        end += number
        known = joined(known, all_events[max(0, end - bound) : end])
    assert known == all_events


def test_of_another_head_there_is_nothing_but_its_own() -> None:
    assert joined(_events(0, 3), _events(7, 9)) == _events(7, 9)
    assert joined(_events(0, 3), []) == []


async def test_the_newest_is_last_and_shown_with_its_local_time() -> None:
    app = _App()
    async with app.run_test(size=(80, 10)) as pilot:
        assert "nothing happened yet" in shown(app)
        log = app.query_one(EventLog)
        log.show_events(_events(0, 30))
        await pilot.pause()
        assert "event 29." in shown(app) and "event 19." not in shown(app)
        assert amounts.clock(_NOW + 29) in shown(app)
        log.show_events(_events(0, 31))
        await pilot.pause()
        assert "event 30." in shown(app)


async def test_it_stays_where_the_reader_scrolled_and_follows_again_at_the_end() -> None:
    app = _App()
    async with app.run_test(size=(80, 10)) as pilot:
        log = app.query_one(EventLog)
        log.show_events(_events(0, 30))
        await pilot.pause()
        log.scroll_to(y=5, animate=False)
        await pilot.pause()
        before = shown(app)
        assert "event 5." in before
        log.show_events(_events(20, 40))
        await pilot.pause()
        assert [line[:30] for line in shown(app).splitlines()] == [line[:30] for line in before.splitlines()]
        log.focus()
        await pilot.press("end")
        await pilot.pause(0.5)
        log.show_events(_events(20, 41))
        await pilot.pause()
        assert "event 40." in shown(app)


async def test_many_events_are_bounded() -> None:
    app = _App()
    async with app.run_test(size=(80, 10)) as pilot:
        log = app.query_one(EventLog)
        for end in range(100, 2001, 95):
            log.show_events(_events(end - 100, end))
            await pilot.pause()
        assert "event 1999." in shown(app)
        assert log.virtual_size.height <= 600


@pytest.mark.parametrize("size", [(60, 20), (80, 24)])
async def test_enlarged_it_goes_on_and_escape_closes(size: tuple[int, int]) -> None:
    app = _App()
    async with app.run_test(size=size) as pilot:
        log = app.query_one(EventLog)
        log.show_events(_events(0, 3))
        log.action_enlarge()
        await pilot.pause()
        assert isinstance(app.screen, EventsScreen) and "event 2." in shown(app)
        log.show_events(_events(0, 4))
        await pilot.pause()
        assert "event 3." in shown(app)
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(app.screen, EventsScreen) and "event 3." in shown(app)
        log.show_events(_events(0, 5))
        log.action_enlarge()
        await pilot.pause()
        assert "event 4." in shown(app)


async def test_foreign_text_stays_text_on_one_line_each() -> None:
    app = _App()
    async with app.run_test(size=(80, 60)) as pilot:
        app.query_one(EventLog).show_events([Event(time=_NOW, what=f"{name} left") for name in NASTY])
        await pilot.pause()
        screen = shown(app)
        assert "[bold red]pc[/] left" in screen and "[@click=app.quit]" in screen
        assert "\x1b" not in screen and "\u202e" not in screen


async def test_another_day_is_said() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        yesterday = _NOW - 2 * 86_400
        app.query_one(EventLog).show_events([Event(time=yesterday, what="old"), Event(time=_NOW, what="new")])
        await pilot.pause()
        assert amounts.day(yesterday) in shown(app) and amounts.day(_NOW) in shown(app)


async def test_another_head_begins_anew() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        log = app.query_one(EventLog)
        log.show_events(_events(0, 3))
        log.show_events(())
        await pilot.pause()
        assert "nothing happened yet" in shown(app)
        log.show_events(_events(8, 9))
        await pilot.pause()
        assert "event 8." in shown(app).splitlines()[0] and "event 2." not in shown(app)
