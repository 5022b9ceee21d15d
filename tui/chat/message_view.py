"""One message of a transcript: what it says, laid out a slice at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter

from textual.content import Content
from textual.style import Style

from tui.chat.attachment import Attachment
from tui.chat.block import EMPTY, MUTED, Block, Row, TextBlock
from tui.chat.markdown import Code, MarkdownText, portion
from tui.client.plain import clean, one_line

_SHOWN_LINES = 16
_FOLDED_FROM = 24
"""A question of more lines shows the first ones only, until it is unfolded."""
_FOLDED_WIDTH = 200
_PLAIN_LINES = 50

COPY = "copy_message"
"""In a style's meta: a click copies the message."""
UNFOLD = "unfold"
"""In a style's meta: a click shows all of the message, or hides it again."""


Blocks = Callable[[], Iterable[Block]]
"""Makes blocks when they are wanted: most messages of a long conversation are never looked at."""


class MessageView:
    """Rows of a message at the newest width asked for.

    Args:
        head: Goes before the text.
        tail: Goes after it; asked for anew with each `advance`.
    """

    def __init__(self, head: Blocks, tail: Blocks = tuple) -> None:
        self._head, self._tail = head, tail
        self.rows: list[Row] = []
        """All of them, once `advance` has said that it is done."""
        self.unchanged = 0
        """So many of them are those that were there before `advance`."""
        self._width = 0
        self._settled_rows = 0

    def advance(self, width: int, seconds: float = float("inf")) -> bool:
        """Lay out for a width, for about so long at most; says whether it is done. If not, call it again."""
        if width != self._width:
            self._width = width
            self.rows = []
            self._extend(self._head())
            self._settled_rows = len(self.rows)
            self._rewind()
        settled = self._settled_rows
        before = self.rows[settled:]
        del self.rows[settled:]
        is_done = self._advance(perf_counter() + seconds)
        if is_done:
            self._extend(self._tail())
        same = 0
        for row, new in zip(before, self.rows[settled:], strict=False):
            if not row.is_same(new):
                break
            self.rows[settled + same] = row  # it may be drawn already
            same += 1
        self.unchanged = settled + same
        return is_done

    def copy_text(self) -> str:
        """Its text, to be copied."""
        raise NotImplementedError

    def _rewind(self) -> None:
        """Lay out from the start."""
        raise NotImplementedError

    def _advance(self, deadline: float) -> bool:
        """Add rows; those that `_settle` is called for stay."""
        raise NotImplementedError

    def _settle(self) -> None:
        self._settled_rows = len(self.rows)

    def _extend(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            self.rows += block.rows(self._width)


class AnswerView(MessageView):
    """A model's answer, drawn as Markdown."""

    def __init__(self, head: Blocks, text: str = "", tail: Blocks = tuple) -> None:
        super().__init__(head, tail)
        self._markdown = MarkdownText()
        self._text = text
        self._fed = 0
        """So many characters are parsed."""
        self._laid_out = 0
        """So many of the settled blocks are."""

    def follow(self, text: str) -> None:
        """It has grown, and is this now."""
        self._text = text

    @property
    def codes(self) -> list[Code]:
        """Its code blocks, as far as it is parsed."""
        return self._markdown.codes

    def parse_all(self) -> None:
        """Parse what is not yet."""
        while self._fed < len(self._text):
            self._feed()

    def copy_text(self) -> str:
        """Its text, to be copied."""
        return clean(self._text)

    def _rewind(self) -> None:
        self._laid_out = 0

    def _feed(self) -> None:
        end = portion(self._text, self._fed)
        self._markdown.feed(self._text[self._fed : end])
        self._fed = end

    def _advance(self, deadline: float) -> bool:
        built = self._markdown.built
        while True:
            while self._laid_out < self._markdown.settled:
                self._extend([built[self._laid_out].block])
                self._laid_out += 1
                self._settle()
                if perf_counter() > deadline:
                    return False
            if self._fed >= len(self._text):
                break
            self._feed()
            if perf_counter() > deadline:
                return False
        self._extend(item.block for item in built[self._laid_out :])
        return True


class QuestionView(MessageView):
    """What the user asked, as it was typed."""

    def __init__(self, head: Blocks, text: str, attachments: Iterable[Attachment] = ()) -> None:
        super().__init__(head, lambda: map(attached, attachments))
        self._text = text
        self._lines: list[str] = []
        self._can_fold = len(text) > _FOLDED_FROM * _FOLDED_WIDTH or text.count("\n") >= _FOLDED_FROM
        self._is_folded = self._can_fold
        self._next = 0

    def toggle(self) -> bool:
        """Show all of it, or hide it again; says whether that changes anything."""
        if self._can_fold:
            self._is_folded = not self._is_folded
            self._width = 0
        return self._can_fold

    def copy_text(self) -> str:
        """Its text, to be copied."""
        return clean(self._text)

    def _rewind(self) -> None:
        self._next = 0

    def _advance(self, deadline: float) -> bool:
        if not self._lines:
            self._lines = clean(self._text).expandtabs(4).split("\n")
        lines = [line[:_FOLDED_WIDTH] for line in self._lines[:_SHOWN_LINES]] if self._is_folded else self._lines
        while self._next < len(lines):
            part = lines[self._next : self._next + _PLAIN_LINES]
            self._extend([TextBlock(Content("\n".join(part)))])
            self._next += len(part)
            self._settle()
            if perf_counter() > deadline:
                return False
        if self._can_fold:
            words = f"▸ {len(self._text):,} characters in all; show" if self._is_folded else "▾ show less"
            self._extend(
                [TextBlock(Content.assemble((words, Style.from_meta({UNFOLD: True}) + Style(underline=True))))]
            )
        return True


def attached(attachment: Attachment) -> Block:
    """A line for a file that goes along."""
    note = f" ({one_line(attachment.note, 60)})" if attachment.note else ""
    size = f" {len(attachment.text):,} characters"
    return TextBlock(Content.assemble(("▤ ", MUTED), one_line(attachment.name, 60), (size + note, MUTED)))


def title(who: str, *, detail: str = "", style: str = "bold $text-primary") -> list[Block]:
    """A message's first row: who says it."""
    copy = Style.from_meta({COPY: True}) + Style(underline=True)
    parts: list[tuple[str, str | Style]] = [(f"▌{who}", style)]
    if detail:
        parts.append((f" · {one_line(detail, 60)}", MUTED))
    return [TextBlock(EMPTY), TextBlock(Content.assemble(*parts, ("  ", ""), ("copy", copy)))]
