"""The fleet pane's lower part: sections side by side, or one of them under a line of names where room is scarce."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.events import Click
from textual.message import Message
from textual.widgets import Static

SECTIONS: tuple[str, ...] = ("requests", "pending", "events")


class Section(Container):
    """A part with a title. Its id is its name."""

    DEFAULT_CSS = """
    Section {
        height: 1fr;
    }
    """

    _title = ""

    def set_title(self, title: str) -> None:
        """Say what is in it; our own words only."""
        if title != self._title:  # each assignment draws the whole border
            self._title = self.border_title = title


class SectionLabel(Static):
    """The name of a section, to click on."""

    class Chosen(Message):
        """It was clicked."""

        def __init__(self, section: str) -> None:
            super().__init__()
            self.section = section

    DEFAULT_CSS = """
    SectionLabel {
        width: auto;
        padding: 0 1;
        color: $text-muted;
        &:hover { background: $block-hover-background; }
        &.-active { color: $text; text-style: bold reverse; }
    }
    """

    def __init__(self, section: str) -> None:
        super().__init__(section, markup=False, classes=f"of-{section}")
        self.section = section
        self._shown = section

    def set_title(self, title: str) -> None:
        """Say what is in it."""
        if title != self._shown:
            self._shown = title
            self.update(title)

    def on_click(self, event: Click) -> None:
        """Tell the pane."""
        event.stop()
        self.post_message(self.Chosen(self.section))


class SectionBar(Horizontal):
    """The line of names."""

    ALLOW_MAXIMIZE: ClassVar[bool | None] = False
    DEFAULT_CSS = """
    SectionBar {
        height: 1;
        background: $panel;
    }
    """

    def compose(self) -> ComposeResult:
        """A label each."""
        for section in SECTIONS:
            yield SectionLabel(section)

    def show(self, section: str) -> None:
        """Mark the one that is seen."""
        for label in self.query(SectionLabel):
            label.set_class(label.section == section, "-active")

    def set_title(self, section: str, title: str, *, is_there: bool) -> None:
        """Say what is in a section, or leave it out."""
        label = self.query_one(f".of-{section}", SectionLabel)
        label.set_title(title)
        label.display = is_there
