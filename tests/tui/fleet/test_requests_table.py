from typing import Any

import pytest
from dialog_head import MARKUP, NASTY, shown
from textual.app import App, ComposeResult

from tui.client.state import Chain, Fleet, Model, Request
from tui.fleet.requests_table import RequestsTable

_SIZES = [(60, 20), (80, 24), (140, 45)]


class _App(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.cancelled: list[str] = []

    def compose(self) -> ComposeResult:
        yield RequestsTable()

    def on_requests_table_cancel_requested(self, message: RequestsTable.CancelRequested) -> None:
        self.cancelled.append(message.request)


def _fleet(*requests: Request) -> Fleet:
    return Fleet(model=Model(name="m", layers=30, context_length=8192), chains=(Chain(stages=(), requests=requests),))


def _request(number: int, **more: Any) -> Request:
    given: dict[str, Any] = {"client": "someone", "state": "decode", "age_seconds": 100 - number, **more}
    return Request(id=f"chatcmpl-{number:03}abcdef", **given)


@pytest.mark.parametrize("size", _SIZES)
async def test_foreign_text_stays_text_in_its_column(size: tuple[int, int]) -> None:
    app = _App()
    async with app.run_test(size=size) as pilot:
        table = app.query_one(RequestsTable)
        requests = [Request(id=f"{number}{name}", client=name) for number, name in enumerate(NASTY)]
        table.show_fleet(_fleet(*requests))
        await pilot.pause()
        screen = shown(app)
        assert "[bold" in screen
        assert "\x1b" not in screen and "\u202e" not in screen
        assert table.row_count == len(NASTY)
        for row in range(table.row_count):
            assert all(
                cell.cell_len <= column.width
                for cell, column in zip(table.get_row_at(row), table.ordered_columns, strict=True)
            )


async def test_every_number_of_a_request_is_there() -> None:
    app = _App()
    async with app.run_test(size=(140, 45)) as pilot:
        request = _request(
            1, prompt_tokens=8200, done_tokens=950, completion_tokens=37, max_tokens=256, tokens_per_second=31.54
        )
        app.query_one(RequestsTable).show_fleet(_fleet(request))
        await pilot.pause()
        for text in ("001abc", "someone", "▶ decode", "8.2k", "950", "37/256", "31.5", "1:39 min"):
            assert text in shown(app)


async def test_cursor_and_scroll_stay_with_their_requests() -> None:
    app = _App()
    async with app.run_test(size=(80, 12)) as pilot:
        table = app.query_one(RequestsTable)
        requests = [_request(number) for number in range(40)]
        table.show_fleet(_fleet(*requests))
        await pilot.pause()
        table.focus()
        for _ in range(25):
            await pilot.press("down")
        await pilot.pause()
        selected, top = table.selected, table.scroll_offset.y
        assert selected == requests[25].id and top > 0
        # three above the cursor end, one comes, the others go on
        rest = [request.model_copy(update={"done_tokens": 7}) for request in requests if request not in requests[2:5]]
        table.show_fleet(_fleet(*rest, _request(40)))
        await pilot.pause()
        await pilot.pause()
        assert table.selected == selected
        assert table.scroll_offset.y == top - 3
        assert table.row_count == 38
        table.action_cancel()
        await pilot.pause()
        assert app.cancelled == [selected]


async def test_where_the_request_of_the_cursor_ends_the_next_one_is_selected() -> None:
    app = _App()
    async with app.run_test(size=(80, 24)) as pilot:
        table = app.query_one(RequestsTable)
        requests = [_request(number) for number in range(4)]
        table.show_fleet(_fleet(*requests))
        await pilot.pause()
        table.move_cursor(row=1)
        table.show_fleet(_fleet(requests[0], requests[2], requests[3]))
        await pilot.pause()
        assert table.selected == requests[2].id
        table.show_fleet(_fleet())
        await pilot.pause()
        assert table.selected is None
        table.action_cancel()
        await pilot.pause()
        assert app.cancelled == []


async def test_another_width_keeps_rows_and_cursor() -> None:
    app = _App()
    async with app.run_test(size=(140, 24)) as pilot:
        table = app.query_one(RequestsTable)
        requests = [_request(number, client=MARKUP) for number in range(6)]
        table.show_fleet(_fleet(*requests))
        await pilot.pause()
        table.move_cursor(row=3)
        await pilot.resize_terminal(60, 20)
        await pilot.pause()
        assert table.row_count == 6
        assert table.selected == requests[3].id
