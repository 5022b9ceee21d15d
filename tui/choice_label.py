"""Words in a line, one of which is chosen: tabs, sections."""

from __future__ import annotations

from textual.events import Click
from textual.message import Message
from textual.widgets import Static


class ChoiceLabel(Static):
    """One of them, to click on.

    Args:
        text: What it says at first; our own words only.
        choice: What it stands for.
        id: The widget's.
        classes: The widget's.
    """

    class Chosen(Message):
        """It was clicked."""

        def __init__(self, choice: str) -> None:
            super().__init__()
            self.choice = choice

    DEFAULT_CSS = """
    ChoiceLabel {
        width: auto;
        padding: 0 1;
        color: $text-muted;
        &:hover { background: $block-hover-background; }
        &.-active { color: $text; text-style: bold reverse; }
    }
    """

    def __init__(self, text: str, choice: str, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(text, markup=False, id=id, classes=classes)
        self.choice = choice
        self._shown = text

    def set_text(self, text: str) -> None:
        """Say something else."""
        if text != self._shown:
            self._shown = text
            self.update(text)

    def on_click(self, event: Click) -> None:
        """Tell who shows the choice."""
        event.stop()
        self.post_message(self.Chosen(self.choice))
