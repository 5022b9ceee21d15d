from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tui.chat.block import TableBlock, share
from tui.chat.markdown import Code, MarkdownText, highlighted, portion


def rows_of(text: str, width: int = 60, pieces: list[str] | None = None) -> list[str]:
    markdown = MarkdownText()
    for piece in pieces or [text]:
        markdown.feed(piece)
    return [row.content.plain.rstrip() for built in markdown.built for row in built.block.rows(width)]


def codes_of(text: str) -> list[Code]:
    markdown = MarkdownText()
    markdown.feed(text)
    return markdown.codes


def test_paragraphs_headings_lists_quotes() -> None:
    text = "# Title\n\nOne *two* **three** `four`.\nNew line\n\n- a\n- b\n  - c\n\n1. x\n2. y\n\n> said\n> again"
    text += "\n\n---\nend"
    assert rows_of(text) == [
        "Title", "", "One two three four.", "New line", "", "• a", "• b", "  ◦ c", "", "1. x", "2. y", "",
        "▌ said", "▌ again", "", "────────", "", "end",
    ]  # fmt: skip


def test_code_has_a_title_and_keeps_its_lines() -> None:
    text = "Look:\n\n```python\ndef f():\n\n    return 1\n```\n\nDone"
    assert rows_of(text) == ["Look:", "", "python copy", "def f():", "", "    return 1", "", "Done"]
    assert codes_of(text) == [Code("python", "def f():\n\n    return 1")]


def test_code_in_a_list_is_indented() -> None:
    text = "- item\n\n  ```\n  x = 1\n  ```\n"
    assert rows_of(text) == ["• item", "", "  code copy", "  x = 1"]


def test_code_too_wide_is_folded_not_cut() -> None:
    assert rows_of("```\n" + "x" * 25 + "\n```", width=10) == ["code copy", "x" * 10, "x" * 10, "x" * 5]


def test_a_table_fits_the_width() -> None:
    text = "| name | what it is |\n|---|---|\n| a | short |\n| b | " + "long " * 20 + "|\n"
    rows = rows_of(text, width=40)
    assert rows[0] == "name │ what it is"
    assert set(rows[1]) == {"─", "┼"}
    assert max(map(len, rows)) <= 40
    assert "".join(rows).count("long") == 20


def test_a_link_shows_where_it_goes() -> None:
    assert rows_of("[our bank](https://evil.example)") == ["our bank (https://evil.example)"]
    assert rows_of("<https://fine.example>") == ["https://fine.example"]
    assert rows_of("![cat](https://x.example/cat.png)") == ["[picture: cat] (https://x.example/cat.png)"]


def test_a_link_definition_is_shown() -> None:
    assert rows_of("[a][b]\n\n[b]: https://x.example") == ["[a][b]", "", "[b]: https://x.example"]


@pytest.mark.parametrize(
    "text",
    [
        "[bold]x[/bold] [@click=app.quit]y[/]",
        "<b>x</b> <script>alert(1)</script>",
        "<div>\nblock\n</div>",
    ],
)
def test_foreign_markup_is_text(text: str) -> None:
    assert "\n".join(rows_of(text, 200)) == text


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[31mred\x1b[0m",
        "\x1b]52;c;aGVsbG8=\x07",
        "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
        "\x9b31m\x90x\x9c",
        "`\x1b[31m`",
        "```\n\x1b[2J\n```",
        "```\x1b[2J\ncode\n```",
        "&#27;[31m &#x9b;31m &#x202e;evil",
        "[x](https://a.example/\x1b[2J)",
        "![\x1b[2J](x)",
        "| \x1b[2J |\n|---|\n| &#x1b; |",
        "# \x07 \x08 \x7f",
    ],
)
def test_escape_codes_are_harmless(text: str) -> None:
    shown = "\n".join(rows_of(text, 200))
    assert all(character == "\n" or (character.isprintable() and character != "\u202e") for character in shown)


def test_nothing_is_to_be_clicked_but_copy() -> None:
    markdown = MarkdownText()
    markdown.feed("[a](https://x.example) <https://y.example> ![b](z)\n\n```\ncode\n```")
    metas = [
        span.style.meta
        for built in markdown.built
        for row in built.block.rows(80)
        for span in row.content.spans
        if not isinstance(span.style, str) and span.style.meta
    ]
    assert metas == [{"copy_code": 0}]


SAMPLE = """# A title

Some *text* with `code` and a [link](https://x.example).
More of it.

- one
- two

  second paragraph
- three
  1. inner
  2. inner two

```python
def f():
    '''doc

    string'''
    return [1, 2]
```

| a | b |
|---|---|
| 1 | 2 |

> quoted
> text

Setext
======

The end.
"""


@given(st.lists(st.integers(0, len(SAMPLE)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_pieces_come_to_the_same_as_the_whole(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(SAMPLE)]
    pieces = [SAMPLE[start:stop] for start, stop in pairwise(ends)]
    assert rows_of("", pieces=pieces) == rows_of(SAMPLE)


@given(st.text(alphabet="ab *_`#->|[]()\n\\!~1.&;\t漢é\U0001f600\u200d\u2028\x1b\r", max_size=200), st.integers(20, 60))
@settings(max_examples=200, deadline=None)
def test_whatever_the_text_it_is_harmless_and_fits(text: str, width: int) -> None:
    pieces = [text[start : start + 7] for start in range(0, len(text), 7)]
    markdown = MarkdownText()
    for piece in pieces:
        markdown.feed(piece)
    for built in markdown.built:
        for row in built.block.rows(width):
            assert not set(row.content.plain) & {"\x1b", "\r", "\n"}
            if not row.content.plain.startswith(("▌ ▌ ", "• ")) and not isinstance(built.block, TableBlock):
                assert row.content.cell_length <= width


def test_finished_blocks_are_not_built_again() -> None:
    markdown = MarkdownText()
    markdown.feed("one\n\ntwo\n\n- a\n- b\n- c")
    assert markdown.settled == 4
    before = [built.block for built in markdown.built[:4]]
    markdown.feed(" more")
    assert all(built.block is block for built, block in zip(markdown.built, before, strict=False))


def test_a_paragraph_without_end_is_parsed_in_parts() -> None:
    markdown = MarkdownText()
    for _ in range(50):
        markdown.feed("[" * 1000)
    assert sum(len(row.content.plain) for built in markdown.built for row in built.block.rows(80)) == 50_000
    assert markdown.settled > 0


def test_an_unknown_language_is_no_error() -> None:
    assert highlighted("a = 1", "no such language").plain == "a = 1"
    assert highlighted("\tx\n", "python").plain == "    x\n"


@given(st.lists(st.integers(0, 200), min_size=1, max_size=8), st.integers(8, 200))
def test_columns_share_the_room(wanted: list[int], room: int) -> None:
    widths = share(wanted, room)
    assert sum(widths) <= max(room, len(wanted))
    assert all(1 <= width <= max(want, 1) for width, want in zip(widths, wanted, strict=True))
    if sum(max(want, 1) for want in wanted) <= room:
        assert widths == [max(want, 1) for want in wanted]


LONG_TABLES = (
    "Before:\n\n| n | what |\n|---|---|\n"
    + "".join(f"| {number} | row **{number * 37}** |\n" for number in range(130))
    + "\n| other | table |\n|---|---|\n"
    + "| x | y |\n" * 50
    + "1. then a list\n"
)


@given(st.lists(st.integers(0, len(LONG_TABLES)), max_size=15))
@settings(max_examples=12, deadline=None)
def test_a_long_table_in_pieces_is_the_same(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(LONG_TABLES)]
    pieces = [LONG_TABLES[start:stop] for start, stop in pairwise(ends)]
    assert rows_of("", pieces=pieces) == rows_of(LONG_TABLES)


def test_a_table_that_grows_is_laid_out_in_parts() -> None:
    markdown = MarkdownText()
    for line in LONG_TABLES.splitlines(keepends=True)[:134]:
        markdown.feed(line)
    tables = [built.block for built in markdown.built if isinstance(built.block, TableBlock)]
    assert len(tables) == 4
    assert markdown.settled == len(markdown.built) - 1
    rows = [row.content.plain for table in tables for row in table.rows(60)]
    assert [row.split()[0] for row in rows if row[:1].isdigit()] == [str(number) for number in range(130)]
    assert sum("what" in row for row in rows) == 1


@pytest.mark.parametrize(
    "unit", ["[", "*_[", "![", "*a_ ", "[a](b", "\\*", "<a", "~~a", "`a ``", "- a\n  - b\n", "> a\n>\n"]
)
def test_what_parses_slowly_is_parsed_in_parts(unit: str) -> None:
    text = (unit * 12_000)[:12_000]
    markdown = MarkdownText()
    fed = 0
    while fed < len(text):
        end = portion(text, fed)
        assert fed < end <= fed + 4001
        markdown.feed(text[fed:end])
        fed = end
    assert markdown.settled > 0


def test_portions_do_not_cut_the_end_of_a_line() -> None:
    text = "\r\n" * 5000 + "[\r\n" * 500
    ends = [0]
    while ends[-1] < len(text):
        ends.append(portion(text, ends[-1]))
    assert all(text[end - 1 : end + 1] != "\r\n" for end in ends[1:])
