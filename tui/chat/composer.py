"""Where a question is typed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Static, TextArea

from tui.chat.attachment import Attachment
from tui.chat.block import MUTED
from tui.chat.pasting import as_attachment, is_large
from tui.client.plain import clean, one_line

_REMOVE = "remove"
"""In a style's meta: a click takes the file of this number away."""


class QuestionArea(TextArea):
    """The text. Enter sends; ctrl+j, shift+enter and alt+enter begin a new line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+j,shift+enter,alt+enter", "new_line", "New line", show=False),
    ]

    class Entered(Message):
        """Enter was pressed."""

    class Pasted(Message):
        """A text too large to be typed into was pasted."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class RemoveWanted(Message):
        """Backspace, and there is no text: the last file is to go."""

    class BringBackWanted(Message):
        """Undo, and there is nothing to undo in the text."""

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self.post_message(self.Entered())
        elif event.key == "backspace" and not self.text:
            event.stop()
            event.prevent_default()
            self.post_message(self.RemoveWanted())
        else:
            await super()._on_key(event)

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        if is_large(event.text):
            self.post_message(self.Pasted(event.text))
        elif result := self._replace_via_keyboard(clean(event.text), *self.selection):
            self.move_cursor(result.end_location)

    def action_new_line(self) -> None:
        """Begin a new line."""
        self._replace_via_keyboard("\n", *self.selection)

    def action_undo(self) -> None:
        """Undo the last change; without a text, bring back the file that was taken away."""
        if self.text:
            super().action_undo()
        else:
            self.post_message(self.BringBackWanted())


class Composer(Widget):
    """A question being typed, and the files that go with it."""

    DEFAULT_CSS = """
    Composer {
        height: auto;
        max-height: 50%;
        QuestionArea {
            height: auto;
            min-height: 3;
            max-height: 10;
            border: round $border-blurred;
            padding: 0 1;
            &:focus { border: round $border; }
        }
        #files {
            height: auto;
            max-height: 4;
            padding: 0 2;
            color: $text-muted;
            &.-none { display: none; }
        }
    }
    """

    class Submitted(Message):
        """The question is to be sent. The composer keeps it until it is told to `clear`."""

    class Changed(Message):
        """Something was typed, pasted or attached."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.area = QuestionArea(id="question", placeholder=Content("Ask something"), highlight_cursor_line=False)
        """Where the text is."""
        self._files = Static(id="files", classes="-none", markup=False)
        self._attachments: list[Attachment] = []
        self._removed: list[Attachment] = []

    def compose(self) -> ComposeResult:
        """The files over the text."""
        yield self._files
        yield self.area

    @property
    def text(self) -> str:
        """What is typed."""
        return self.area.text

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """What goes along."""
        return tuple(self._attachments)

    @property
    def is_empty(self) -> bool:
        """There is nothing to send."""
        return not self._attachments and not self.text.strip()

    def fill(self, text: str, attachments: Iterable[Attachment]) -> None:
        """Have this instead of what is there."""
        self.area.load_text(clean(text))
        self.area.move_cursor(self.area.document.end)
        self._attachments = list(attachments)
        self._show_files()

    def clear(self) -> None:
        """Have nothing."""
        self.fill("", ())
        self._removed = []

    def attach(self, attachment: Attachment) -> None:
        """Let a file go along."""
        self._attachments.append(attachment)
        self._show_files()
        self.post_message(self.Changed())

    def say(self, text: str) -> None:
        """What stands in the border, e.g. that a message is being edited."""
        self.area.border_title = Content(text) if text else None

    def focus(self, scroll_visible: bool = True) -> Composer:
        """Give the text the focus."""
        self.area.focus(scroll_visible)
        return self

    def _show_files(self) -> None:
        self._files.set_class(not self._attachments, "-none")
        remove = Style(underline=True)
        parts: list[str | Content | tuple[str, str | Style]] = []
        for number, attachment in enumerate(self._attachments):
            note = f", {one_line(attachment.note, 40)}" if attachment.note else ""
            name = one_line(attachment.name, 40)
            parts += [
                ("\n" if number else "", ""),
                f"▤ {name}",
                (f" {len(attachment.text):,} characters{note}  ", MUTED),
                ("remove", remove + Style.from_meta({_REMOVE: number})),
            ]
        self._files.update(Content.assemble(*parts))

    def _remove(self, number: int) -> None:
        if 0 <= number < len(self._attachments):
            removed = self._attachments.pop(number)
            self._removed.append(removed)
            self._show_files()
            self.post_message(self.Changed())
            self.notify(
                f"Took {one_line(removed.name, 40)} away; ctrl+z in the empty line brings it back.", markup=False
            )

    def on_click(self, event: events.Click) -> None:
        """Take a file away."""
        number = event.style.meta.get(_REMOVE)
        if isinstance(number, int):
            event.stop()
            self._remove(number)

    def on_question_area_remove_wanted(self, event: QuestionArea.RemoveWanted) -> None:
        """Take the last file away."""
        event.stop()
        self._remove(len(self._attachments) - 1)

    def on_question_area_bring_back_wanted(self, event: QuestionArea.BringBackWanted) -> None:
        """Have the file again that was taken away last."""
        event.stop()
        if self._removed:
            self.attach(self._removed.pop())
        else:
            TextArea.action_undo(self.area)

    def on_question_area_pasted(self, event: QuestionArea.Pasted) -> None:
        """A large paste goes beside the text."""
        event.stop()
        self.attach(as_attachment(event.text, self._attachments))

    def on_question_area_entered(self, event: QuestionArea.Entered) -> None:
        """Hand it on."""
        event.stop()
        self.post_message(self.Submitted())

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Hand it on."""
        event.stop()
        self.post_message(self.Changed())
