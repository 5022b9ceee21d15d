"""The answers in the works, as a table."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import DataTable

from tui import amounts
from tui.client.state import Fleet, Request
from tui.fleet.texts import fitted, right

_STATES = {"waiting": "… waiting", "prefill": "» prefill", "decode": "▶ decode", "preempted": "‖ preempted"}
_WIDTHS = {
    "id": 6,
    "client": 14,
    "state": 11,
    "tok/s": 5,
    "answer": 9,
    "age": 9,
    "prompt": 6,
    "done": 4,
    "chain": 5,
}
"""Cells of each column, what matters most first: a narrow table scrolls sideways to the rest."""
_NUMBERS = frozenset(("tok/s", "answer", "age", "prompt", "done", "chain"))
_WIDEST_CLIENT = 40


@dataclass(frozen=True, slots=True)
class _Entry:
    request: Request
    chain: str
    """Its number, or `old`: it ends with its last request."""


class RequestsTable(DataTable[Text]):
    """One row an answer; cursor and scroll stay with their requests while others come and go."""

    DEFAULT_CSS = """
    RequestsTable {
        height: 1fr;
    }
    """

    class CancelRequested(Message):
        """Somebody wants this answer ended."""

        def __init__(self, request: str) -> None:
            super().__init__()
            self.request = request

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes, cursor_type="row", cell_padding=0, fixed_columns=1)
        self._entries: dict[str, _Entry] = {}
        self._shown: dict[str, tuple[Text, ...]] = {}
        self._client_width = 0

    @property
    def selected(self) -> str | None:
        """Id of the request under the cursor."""
        return self._key_at(self.cursor_row)

    def show_fleet(self, fleet: Fleet) -> None:
        """Bring the rows up to date."""
        self._entries = {
            request.id: _Entry(request, str(number) if number <= len(fleet.chains) else "old")
            for number, chain in enumerate((*fleet.chains, *fleet.retiring), 1)
            for request in chain.requests
        }
        if self.columns:
            self._update_rows()

    def action_cancel(self) -> None:
        """Ask for the end of the request under the cursor."""
        request = self.selected
        if request is not None:
            self.post_message(self.CancelRequested(request))

    def on_resize(self, event: events.Resize) -> None:
        """Give the clients the room that the other columns leave."""
        others = sum(_WIDTHS.values()) - _WIDTHS["client"] + len(_WIDTHS)
        room = self.scrollable_content_region.width - others
        width = max(_WIDTHS["client"], min(room, _WIDEST_CLIENT))
        if width == self._client_width:
            return
        self._client_width = width
        selected, top = self.selected, self.scroll_offset.y
        self.clear(columns=True)
        self._shown.clear()
        for name, cells in _WIDTHS.items():
            cells = width if name == "client" else cells
            self.add_column(right(name, cells) if name in _NUMBERS else Text(name), width=cells + 1, key=name)
        self._update_rows()
        self._restore(selected, None, top)

    def _update_rows(self) -> None:
        selected, old_row = self.selected, self.cursor_row
        top, top_key = self.scroll_offset.y, self._key_at(self.scroll_offset.y)
        gone = [key for key in self._shown if key not in self._entries]
        come = [key for key in self._entries if key not in self._shown]
        for key in gone:
            self.remove_row(key)
            del self._shown[key]
        for key, old in self._shown.items():
            cells = self._cells(self._entries[key])
            for column, before, now in zip(_WIDTHS, old, cells, strict=True):
                if before != now:
                    self.update_cell(key, column, now)
            self._shown[key] = cells
        for key in sorted(come, key=lambda key: -self._entries[key].request.age_seconds):
            self._shown[key] = self._cells(self._entries[key])
            self.add_row(*self._shown[key], key=key)
        if gone:
            following = self._key_at(min(old_row, self.row_count - 1))
            self._restore(selected if selected in self._shown else following, top_key, top)

    def _restore(self, selected: str | None, top_key: str | None, top: int) -> None:
        """Put cursor and scroll back to the requests they were at."""
        if selected is not None and selected in self._shown:
            self.move_cursor(row=self.get_row_index(selected), scroll=False)
        if top_key is not None and top_key in self._shown:
            top = self.get_row_index(top_key)
        # after the cursor's own scrolling, which waits for the new size of the table too
        self.call_after_refresh(self.scroll_to, y=top, animate=False, force=True)

    def _key_at(self, row: int) -> str | None:
        return self.ordered_rows[row].key.value if self.is_valid_row_index(row) else None

    def _cells(self, entry: _Entry) -> tuple[Text, ...]:
        request = entry.request
        limit = f"/{amounts.count(request.max_tokens)}" if request.max_tokens else ""
        texts = {
            "tok/s": amounts.tokens_per_second(request.tokens_per_second),
            "answer": amounts.count(request.completion_tokens) + limit,
            "age": amounts.duration(request.age_seconds),
            "prompt": amounts.count(request.prompt_tokens),
            "done": amounts.count(request.done_tokens),
            "chain": entry.chain,
        }
        return (
            fitted(request.id.rsplit("-", 1)[-1][: _WIDTHS["id"]] or "?", _WIDTHS["id"]),
            fitted(request.client or amounts.UNKNOWN, self._client_width),
            Text(_STATES[request.state]),
            *(right(text, _WIDTHS[name]) for name, text in texts.items()),
        )
