"""The fleet pane's lower part: sections side by side, or one of them under a line of names where room is scarce."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Container, Horizontal

from tui.choice_label import ChoiceLabel

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
            yield ChoiceLabel(section, section, classes=f"of-{section}")

    def show(self, section: str) -> None:
        """Mark the one that is seen."""
        for label in self.query(ChoiceLabel):
            label.set_class(label.choice == section, "-active")

    def set_title(self, section: str, title: str, *, is_there: bool) -> None:
        """Say what is in a section, or leave it out."""
        label = self.query_one(f".of-{section}", ChoiceLabel)
        label.set_text(title)
        label.display = is_there
