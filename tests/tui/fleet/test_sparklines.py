from dialog_head import shown
from fleet_states import history_of, simple
from textual.app import App, ComposeResult

from tui.fleet.sparklines import Sparklines


class _App(App[None]):
    CSS = "Sparklines { height: 100%; }"

    def compose(self) -> ComposeResult:
        yield Sparklines()


async def _text(count: int, size: tuple[int, int]) -> list[str]:
    app = _App()
    async with app.run_test(size=size) as pilot:
        state = simple(count)
        app.query_one(Sparklines).show_fleet(state, history_of(state))
        await pilot.pause()
        return shown(app).splitlines()


async def test_a_row_each() -> None:
    lines = await _text(2, (60, 5))
    assert [line.split()[0] for line in lines] == ["tok/s", "queue", "running", "use", "use"]
    assert [line.split()[-1] for line in lines[1:3]] == ["1", "2"] and lines[3].endswith("42 % ")


async def test_two_lines_are_two_columns() -> None:
    lines = await _text(3, (80, 2))
    assert "tok/s" in lines[0] and "queue" in lines[0] and "running" in lines[1] and "use pc-1" in lines[1]


async def test_a_narrow_screen_shows_rate_and_queue() -> None:
    lines = await _text(3, (30, 2))
    assert [line.split()[0] for line in lines] == ["tok/s", "queue"]


async def test_what_has_no_room_is_counted() -> None:
    lines = await _text(20, (36, 8))
    assert lines[-1].strip() == "+16 more" and len(lines) == 8
