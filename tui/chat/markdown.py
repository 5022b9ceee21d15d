"""Markdown of a model, for the transcript: to blocks, a piece at a time as it arrives.

What a model says is foreign text. It is cleaned of control characters before and after parsing (entities such as
`&#x202e;` come to life in the parser), HTML is shown as what it is, nothing is markup of Textual, and a link shows its
address and is nothing to click on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from textual.content import Content, Span
from textual.highlight import highlight
from textual.style import Style

from tui.chat.block import EMPTY, MUTED, Block, TableBlock, TextBlock
from tui.client.plain import clean, one_line

CODE_FILL = "on $boost"
COPY_CODE = "copy_code"
"""In a style's meta: a click copies the code block of this number."""
_HEADINGS = {"h1": "bold underline $text-primary", "h2": "bold $text-primary", "h3": "bold underline"}
_INLINE = {"em_open": "italic", "strong_open": "bold", "s_open": "strike"}

_HIGHLIGHTED_LINES = 40
"""Code is highlighted so many lines at a time: a long block that grows costs no more than a short one."""
_GROWING_LINES = 4
"""So many at its end, as long as it grows."""
_LONGEST_HIGHLIGHTED_LINE = 1000
"""Minified code is read by nobody, and lexers are slow on it."""
_MOST_WORK = 8000
"""What is parsed again with every piece ends there: so many characters, or fewer of those that parse slowly."""
_WORK_OF_MARKS = {"[": 48, "!": 24, **dict.fromkeys("*_~`<&\\", 4)}
"""How much more than a plain character these are."""
_PORTION = 4000
"""Of the same: what is best fed at once."""
_PART_LINES = 40
_PART_CHARACTERS = 4000
"""A table is laid out in parts of at most so much: one that grows costs no more than a short one."""

# no raw HTML; a link's definition elsewhere in the text is shown, not hidden
_DEEPEST = 100
"""Of lists and quotes in one another: what is deeper the parser leaves out, and its usual 20 are soon reached."""
_PARSER = (
    MarkdownIt("commonmark", {"html": False, "maxNesting": _DEEPEST})
    .enable(["table", "strikethrough"])
    .disable(["reference"])
)


class Code(NamedTuple):
    """A code block, as it can be copied."""

    language: str
    text: str


class Built(NamedTuple):
    """A block, and where it is from."""

    line: int
    block: Block
    stands_alone: bool = False
    """Code, a table, a heading or a rule: what follows keeps a distance."""
    code: Code | None = None


class MarkdownText:
    """A text that grows, as blocks.

    Blocks before the last one (in a list: before its last item) never change any more, so that a long text costs no
    more with each piece than a short one.
    """

    def __init__(self) -> None:
        self.built: list[Built] = []
        self.settled = 0
        """So many of them are final."""
        self._rest = ""
        """The text that the others come from."""
        self._table: TableBlock | None = None
        """The part of a table that the rest goes on from; then the rest begins with the table's header."""

    @property
    def codes(self) -> list[Code]:
        """The code blocks, in order."""
        return [built.code for built in self.built if built.code is not None]

    def feed(self, piece: str) -> None:
        """Take more text, cut anywhere but within a `\\r\\n`; a `portion` of it takes some milliseconds."""
        rest = clean(self._rest + piece)
        tokens = _PARSER.parse(rest)
        lines = rest.split("\n")
        del self.built[self.settled :]
        self.built.extend(_Builder(lines, self.built, self._table).build(tokens))
        unit = _last_unit(tokens)
        first = start = unit.map[0] if unit is not None and unit.map is not None else 0
        header: list[str] = []
        if unit is not None and unit.type == "table_open":
            start = self.built[-1].line
            if start > first:  # in another part
                header, self._table = lines[first : first + 2], self._part_before()
            elif start > 0:  # another table
                self._table = None
        else:
            self._table = None
            if unit is not None and unit.type not in ("fence", "code_block") and _work(lines[start:]) > _MOST_WORK:
                start = len(lines)
        while self.settled < len(self.built) and self.built[self.settled].line < start:
            self.settled += 1
        # a blank line before stays in: it is what makes a gap
        keep_blank = 0 < start < len(lines) and _is_blank(lines[start - 1])
        self._rest = "\n" * keep_blank + "\n".join(header + lines[start:])

    def _part_before(self) -> TableBlock | None:
        """Of the table at the end, the part before the last."""
        block = self.built[-2].block
        return block if isinstance(block, TableBlock) else None


def portion(text: str, start: int) -> int:
    """Where that part of a text ends which is best fed next."""
    end = min(start + _PORTION, len(text))
    if _work([text[start:end]]) > _PORTION:
        work = accumulate(1 + _WORK_OF_MARKS.get(character, 0) for character in text[start:end])
        end = start + 1 + next(at for at, done in enumerate(work) if done >= _PORTION)
    return end + 1 if text[end - 1 : end + 1] == "\r\n" else end


def _work(lines: Sequence[str]) -> int:
    """About how much it is to parse them."""
    text = "\n".join(lines)
    return len(text) + sum(work * text.count(mark) for mark, work in _WORK_OF_MARKS.items())


def _last_unit(tokens: Sequence[Token]) -> Token | None:
    """Begins what more text can still change."""
    for token in reversed(tokens):
        is_list = token.type in ("bullet_list_open", "ordered_list_open")
        is_item = token.type == "list_item_open" and token.level == 1
        if token.map is not None and (is_item or (token.level == 0 and not is_list)):
            return token
    return None


def _is_blank(line: str) -> bool:
    return not line.strip(" \t>")


class _Nesting:
    """A list item or a quote that blocks are in."""

    def __init__(self, first: Content, rest: Content) -> None:
        self._first, self.rest = first, rest
        self.is_used = False

    def take(self) -> Content:
        """What stands before the next block's first row."""
        prefix = self.rest if self.is_used else self._first
        self.is_used = True
        return prefix


class _Builder:
    """The tokens of one parse, to blocks.

    Args:
        lines: What was parsed.
        before: Blocks that go before.
        table: The part that a table at the beginning goes on from.
    """

    def __init__(self, lines: Sequence[str], before: Sequence[Built], table: TableBlock | None) -> None:
        self._lines, self._table_before = lines, table
        self._stands_alone = bool(before) and before[-1].stands_alone
        self._is_first = not before
        self._codes = sum(built.code is not None for built in before)
        self._nestings: list[_Nesting] = []
        self._numbers: list[int | None] = []

    def build(self, tokens: Sequence[Token]) -> Iterator[Built]:
        position = 0
        while position < len(tokens):
            token = tokens[position]
            line = token.map[0] if token.map is not None else 0
            position += 1
            match token.type:
                case "bullet_list_open":
                    self._numbers.append(None)
                case "ordered_list_open":
                    self._numbers.append(int(token.attrs.get("start", 1)))
                case "bullet_list_close" | "ordered_list_close":
                    self._numbers.pop()
                case "list_item_open":
                    self._nestings.append(self._item())
                    if tokens[position].type == "list_item_close":
                        yield Built(line, self._block(line, EMPTY))
                case "blockquote_open":
                    bar = Content.styled("▌ ", MUTED)
                    self._nestings.append(_Nesting(bar, bar))
                case "list_item_close" | "blockquote_close":
                    self._nestings.pop()
                case "paragraph_open":
                    yield Built(line, self._block(line, inline(tokens[position])))
                case "heading_open":
                    content = inline(tokens[position]).stylize_before(_HEADINGS.get(token.tag, "bold"))
                    yield Built(line, self._block(line, content, True), True)
                case "hr":
                    yield Built(line, self._block(line, Content.styled("─" * 8, MUTED), True), True)
                case "fence" | "code_block":
                    yield from self._code(line, token)
                case "table_open":
                    end = next(at for at in range(position, len(tokens)) if tokens[at].type == "table_close")
                    yield from self._table(line, tokens[position:end])
                    position = end

    def _item(self) -> _Nesting:
        number = self._numbers[-1]
        if number is None:
            depth = sum(number is None for number in self._numbers)
            bullet = "•◦▪"[(depth - 1) % 3] + " "
        else:
            bullet = f"{number}. "
            self._numbers[-1] = number + 1
        return _Nesting(Content.styled(bullet, MUTED), Content(" " * len(bullet)))

    def _before(self, line: int, stands_alone: bool) -> tuple[Content, Content, Content | None]:
        """What goes before a block's first row, before its others, and in the gap before it."""
        is_first, self._is_first = self._is_first, False
        after_alone, self._stands_alone = self._stands_alone, stands_alone
        keeps_distance = stands_alone or after_alone or (line > 0 and _is_blank(self._lines[line - 1]))
        gap = EMPTY.join(nesting.rest for nesting in self._nestings if nesting.is_used)
        first = EMPTY.join(nesting.take() for nesting in self._nestings)
        rest = EMPTY.join(nesting.rest for nesting in self._nestings)
        return first, rest, gap if keeps_distance and not is_first else None

    def _block(self, line: int, content: Content, stands_alone: bool = False) -> TextBlock:
        return TextBlock(content, *self._before(line, stands_alone))

    def _code(self, line: int, token: Token) -> Iterator[Built]:
        language = one_line(token.info.split()[0], 20) if token.info.split() else ""
        text = token.content.rstrip("\n")
        copy = Style.from_meta({COPY_CODE: self._codes}) + Style(underline=True)
        title = Content.assemble((f"{language or 'code'} ", MUTED), ("copy", copy))
        first, rest, gap = self._before(line, True)
        yield Built(line, TextBlock(title, first, rest, gap, CODE_FILL), True, Code(language, text))
        self._codes += 1
        code_lines = text.split("\n")
        is_open = token.map is not None and token.map[1] >= len(self._lines) and not self._ends_with(token.markup)
        start = 0
        while start < len(code_lines):
            grows = is_open and len(code_lines) - start <= _HIGHLIGHTED_LINES
            stop = start + (_GROWING_LINES if grows else _HIGHLIGHTED_LINES)
            make = _code_block if is_open and stop >= len(code_lines) else _kept_code_block
            yield Built(line, make("\n".join(code_lines[start:stop]), language, rest.plain), True)
            start = stop

    def _ends_with(self, markup: str) -> bool:
        return bool(markup) and self._lines[-1].lstrip(" >").startswith(markup)

    def _table(self, line: int, tokens: Sequence[Token]) -> Iterator[Built]:
        rows: list[list[Content]] = []
        starts: list[int] = []
        for token in tokens:
            if token.type == "tr_open":
                rows.append([])
                starts.append(token.map[0] if token.map is not None else line)
            elif token.type == "inline":
                rows[-1].append(inline(token))
        header = [cell.stylize_before("bold") for cell in rows[0]]
        before, self._table_before = (self._table_before if line == 0 else None), None
        rest, gap = EMPTY, None
        if before is None:
            _, rest, gap = self._before(line, True)
        first, characters = 1, 0
        for number in range(2, len(rows)):
            characters += len(self._lines[starts[number - 1]])
            if number - first == _PART_LINES or characters > _PART_CHARACTERS:
                before = TableBlock(header, rows[first:number], rest, gap, before)
                yield Built(line, before, True)
                first, line, characters, gap = number, starts[number], 0, None
        yield Built(line, TableBlock(header, rows[first:], rest, gap, before), True)


def _code_block(text: str, language: str, indent: str) -> TextBlock:
    content = highlighted(text, language)
    prefix = Content(indent)
    return TextBlock(content, prefix, prefix, fill=CODE_FILL, fold=True)


_kept_code_block = lru_cache(512)(_code_block)


def highlighted(text: str, language: str) -> Content:
    """Code with the colours of its language, if there is such a language."""
    text = text.expandtabs(4)
    if not language or max(map(len, text.split("\n"))) > _LONGEST_HIGHLIGHTED_LINE:
        return Content(text)
    content = highlight(text, language=language)
    # the lexer must not change the text
    return content if content.plain == text else Content(text)


def warm_up() -> None:
    """Have the commonest language's colours ready: loading them takes some tenths of a second."""
    highlighted("pass", "python")


def inline(token: Token) -> Content:
    """A line's text with its styles."""
    parts: list[str] = []
    spans: list[Span] = []
    open_at: list[tuple[int, str]] = []
    hrefs: list[str] = []
    length = 0

    def add(text: str, style: str = "") -> None:
        nonlocal length
        text = clean(text)
        parts.append(text)
        if style:
            spans.append(Span(length, length + len(text), style))
        length += len(text)

    for child in token.children or ():
        match child.type:
            case "text" | "text_special":
                add(child.content)
            case "softbreak" | "hardbreak":
                add("\n")
            case "code_inline":
                add(child.content, "$text-accent on $boost")
            case "image":
                add(f"[picture: {child.content}] ({child.attrs.get('src', '')})", MUTED)
            case "link_open":
                hrefs.append(str(child.attrs.get("href", "")))
                open_at.append((length, "underline"))
            case "link_close":
                start, style = open_at.pop()
                spans.append(Span(start, length, style))
                href = hrefs.pop()
                if "".join(parts)[start:] != href:
                    add(f" ({href})", MUTED)
            case "em_open" | "strong_open" | "s_open":
                open_at.append((length, _INLINE[child.type]))
            case "em_close" | "strong_close" | "s_close":
                start, style = open_at.pop()
                spans.append(Span(start, length, style))
            case _:
                add(child.content)
    return Content("".join(parts), spans)
