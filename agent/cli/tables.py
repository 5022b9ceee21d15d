"""Tables whose text may come from other PCs: it is text, never markup, with nothing in it that a terminal obeys."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text


def plain(text: str) -> Text:
    """Text with `?` for what cannot be printed."""
    return Text("".join(character if character.isprintable() else "?" for character in text))


def titled(title: str, *columns: str) -> Table:
    """An empty table."""
    table = Table(title=plain(title), title_justify="left")
    for column in columns:
        table.add_column(column)
    return table
