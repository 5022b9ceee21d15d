"""The conversation on the screen: only what is in view is drawn; the rest is laid out while nothing else is to do."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from time import perf_counter

from rich.segment import Segment
from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.timer import Timer
from textual.widget import Widget

from tui.chat.block import Row
from tui.chat.markdown import COPY_CODE
from tui.chat.message_view import COPY, UNFOLD, MessageView, QuestionView

_FIRST_SLICE = 0.03
"""Seconds that laying out may take before the first picture."""
_SLICE = 0.008
"""Seconds that it may take at once later."""
_PAUSE = 0.012


class CopyWanted(Message):
    """A message, or one of its code blocks, is to be copied."""

    def __init__(self, view: MessageView, code: int | None = None) -> None:
        super().__init__()
        self.view, self.code = view, code


class Transcript(ScrollView, can_focus=True):
    """Messages, one under the other. It follows what is added as long as its end is in view."""

    ALLOW_SELECT = True
    DEFAULT_CSS = """
    Transcript {
        height: 1fr;
        background: $surface;
        overflow-x: hidden;
        overflow-y: scroll;
        scrollbar-size-vertical: 1;
        &:focus { background-tint: $foreground 3%; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._views: list[MessageView] = []
        self._first = 0
        """Views before this one are not laid out yet."""
        self._ends: list[int] = []
        """Rows up to the end of each view from `_first` on."""
        self._at_end = True
        """The end is in view, and stays so."""
        self._laid_out_width = 0
        self._look = 0
        self._timer: Timer | None = None
        self._wanted: MessageView | None = None
        """To be scrolled to, once it is laid out."""

    @property
    def allow_select(self) -> bool:
        """Text can be marked with the mouse."""
        return True

    @property
    def views(self) -> Sequence[MessageView]:
        """What is shown."""
        return self._views

    @property
    def is_laid_out(self) -> bool:
        """All messages are."""
        return self._first == 0

    def show(self, views: Iterable[MessageView]) -> None:
        """Show other messages, from their end."""
        self._views = list(views)
        self._wanted = None
        self._start_over()

    def append(self, view: MessageView) -> None:
        """Show one more, and go to the end."""
        self._views.append(view)
        if not self._can_lay_out():
            return
        view.advance(self._text_width)
        self._ends.append(self._height + len(view.rows))
        self._resized(True)
        self.refresh()

    def replace_end(self, kept: int, views: Iterable[MessageView]) -> None:
        """Keep the first messages, show others after them, and go to the end."""
        del self._views[kept:], self._ends[max(kept - self._first, 0) :]
        self._first = min(self._first, kept)
        self._resized(True)
        self.refresh()
        for view in views:
            self.append(view)

    def update_view(self, view: MessageView) -> None:
        """A message has changed."""
        index = self._views.index(view) - self._first
        if index < 0 or not self._can_lay_out():
            return
        follows = self._at_end
        start = self._ends[index - 1] if index else 0
        before = self._ends[index]
        view.advance(self._text_width)
        grown = start + len(view.rows) - before
        changed_from, changed_to = start + view.unchanged, before
        if grown:
            self._ends[index:] = [end + grown for end in self._ends[index:]]
            changed_to = max(before, self._height)
            self._resized(follows)
        self.refresh_lines(changed_from, changed_to - changed_from)

    def scroll_to_view(self, view: MessageView) -> None:
        """Bring a message's first row to the top, as soon as it is laid out."""
        self._wanted = view
        self._go_to_wanted()

    # laying out

    @property
    def _text_width(self) -> int:
        return self.size.width - 2

    @property
    def _height(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _can_lay_out(self) -> bool:
        """Whether it has a width; it has none while it is hidden, and what changes then waits for its next width."""
        if self._text_width < 1:
            self._laid_out_width = 0
            return False
        return True

    def _start_over(self) -> None:
        """Lay everything out, from the end."""
        self._first = len(self._views)
        self._ends = []
        if self._can_lay_out():
            self._resized(True)
            self._lay_out(_FIRST_SLICE)
            self.refresh()

    def _lay_out(self, seconds: float) -> None:
        """Lay out for so long at most, towards the first message; what is in view stays where it is."""
        follows = self._at_end
        width = self._text_width
        heights: list[int] = []
        while self._first > 0:
            start = perf_counter()
            view = self._views[self._first - 1]
            if not view.advance(width, seconds):
                break
            heights.insert(0, len(view.rows))
            self._first -= 1
            seconds -= perf_counter() - start
            if seconds <= 0:
                break
        if heights:
            added = sum(heights)
            self._ends = [*accumulate(heights), *(end + added for end in self._ends)]
            self._resized(follows, added)
            self.refresh()
            self._go_to_wanted()
        if self._first > 0 and self._timer is None:
            self._timer = self.set_timer(_PAUSE, self._lay_out_more)

    def _lay_out_more(self) -> None:
        self._timer = None
        if self._first > 0 and self._can_lay_out():
            self._lay_out(_SLICE)

    def _resized(self, follows: bool, added_above: int = 0) -> None:
        # without a layout of the screen, which `virtual_size = ...` asks for: the scrollbar is always there
        self.set_reactive(Widget.virtual_size, Size(self.size.width, self._height))
        self.vertical_scrollbar.window_virtual_size = self._height
        self._at_end = follows
        if follows:
            self.scroll_end(animate=False, immediate=True)
        else:
            self.scroll_to(y=min(self.scroll_offset.y + added_above, self.max_scroll_y), animate=False)

    def _go_to_wanted(self) -> None:
        if self._wanted is None or self._wanted not in self._views:
            return
        index = self._views.index(self._wanted) - self._first
        if index >= 0:
            self._wanted = None
            self.scroll_to(y=self._ends[index - 1] if index else 0, animate=False)

    def on_resize(self) -> None:
        """Keep the end in view, or what is at the top; at another width lines break elsewhere."""
        if self.size.width == self._laid_out_width:
            if self._at_end:
                self.scroll_end(animate=False, immediate=True)
            return
        self._laid_out_width = self.size.width
        anchor = None if self._at_end else self._view_at(self.scroll_offset.y)
        self._look += 1
        self._start_over()
        if anchor is not None:
            self.scroll_to_view(anchor)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Whether the end is in view."""
        super().watch_scroll_y(old_value, new_value)
        self._at_end = self.is_vertical_scroll_end

    def notify_style_update(self) -> None:
        """Another theme."""
        super().notify_style_update()
        self._look += 1
        self.refresh()

    # drawing

    def _view_at(self, y: int) -> MessageView | None:
        index = bisect_right(self._ends, y)
        return self._views[self._first + index] if index < len(self._ends) else None

    def _row(self, y: int) -> Row | None:
        index = bisect_right(self._ends, y)
        if index >= len(self._ends):
            return None
        start = self._ends[index - 1] if index else 0
        return self._views[self._first + index].rows[y - start]

    def render_line(self, y: int) -> Strip:
        """Draw the row that is at a line of the view."""
        at = self.scroll_offset.y + y
        row = self._row(at)
        if row is None:
            return Strip.blank(self.size.width, self.rich_style)
        selection = self.text_selection
        span = selection.get_span(at) if selection is not None else None
        if span is not None:
            return self._draw(row, span).apply_offsets(0, at)
        if row.strip is None or row.look != self._look:
            row.strip, row.look = self._draw(row), self._look
        return row.strip.apply_offsets(0, at)

    def _draw(self, row: Row, span: tuple[int, int] | None = None) -> Strip:
        content = Content(" ") + row.content
        if row.fill:
            content = content.pad_right(max(self.size.width - content.cell_length, 0)).stylize_before(row.fill)
        if span is not None:
            start, end = span
            selected = Style.from_styles(self.screen.get_component_styles("screen--selection"))
            content = content.stylize(selected, start, len(content) if end == -1 else end)
        base = self.visual_style
        segments = [Segment(text, (base + style).rich_style) for text, style in content.render(base, end="")]
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The marked text."""
        rows = (row for view in self._views[self._first :] for row in view.rows)
        return selection.extract("\n".join(" " + row.content.plain for row in rows)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        """Another text is marked."""
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Copy or unfold what was clicked."""
        meta = event.style.meta
        view = self._view_at(self.scroll_offset.y + event.y)
        if view is None:
            return
        if COPY in meta:
            self.post_message(CopyWanted(view))
        elif COPY_CODE in meta:
            self.post_message(CopyWanted(view, int(meta[COPY_CODE])))
        elif UNFOLD in meta and isinstance(view, QuestionView) and view.toggle():
            self.update_view(view)
