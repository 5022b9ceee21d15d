"""The open conversation on the screen, with the answer that streams into it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import monotonic, perf_counter, strftime

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

from tui.chat.answer_footer import footer
from tui.chat.answering import Answering
from tui.chat.block import EMPTY, MUTED, Block, TextBlock
from tui.chat.conversation import Answer, Conversation
from tui.chat.copying import Copied, CopyCycle, amount, code_name
from tui.chat.markdown import warm_up
from tui.chat.message_view import AnswerView, MessageView, QuestionView, title
from tui.chat.transcript import CopyWanted, Transcript
from tui.client.plain import one_line

_FRAME = 0.025
"""Seconds between two drawings of an answer that streams, at least."""
_REST = 3
"""A drawing is followed by a pause of so many times its own duration, at least."""
_LIVE_PAUSE = 0.5
_MOST_NOTES = 5
"""So many of the newest stand under an answer."""


class ConversationView(Vertical):
    """Title and transcript."""

    DEFAULT_CSS = """
    ConversationView {
        height: 1fr;
        #label {
            height: 1;
            padding: 0 1;
            background: $panel;
            text-style: bold;
        }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.transcript = Transcript()
        """The messages."""
        self._label = Static(id="label", markup=False)
        self._conversation = Conversation()
        self._live: Answering | None = None
        """The answer that streams into what is shown."""
        self._notes: list[tuple[Answer, list[str]]] = []
        self._last: tuple[Answer, AnswerView] | None = None
        """The newest answer."""
        self._cycle = CopyCycle()
        self._timer: Timer | None = None
        self._next_drawing = 0.0
        self._waiting = 0

    def compose(self) -> ComposeResult:
        """The title over the messages."""
        yield self._label
        yield self.transcript

    def on_mount(self) -> None:
        """While an answer comes, say how."""
        self.set_interval(_LIVE_PAUSE, self._tick)
        self.run_worker(warm_up, thread=True)

    def show(self, conversation: Conversation, live: Answering | None) -> None:
        """Open a conversation, at its end."""
        self._conversation, self._live = conversation, live
        self._last = None
        views: list[MessageView] = []
        for index in range(len(conversation.turns)):
            views += self._views_of(index)
        self.show_label()
        self.transcript.show(views)

    def show_label(self) -> None:
        """Its title has changed."""
        self._label.update(Content(self._conversation.label))

    def show_last(self, live: Answering | None) -> None:
        """The last turn has changed, or is new; those after it are gone."""
        self._live = live
        last = len(self._conversation.turns) - 1
        self.transcript.replace_end(self._messages_before(last), self._views_of(last))

    def scroll_to_turn(self, turn: int) -> None:
        """Bring a question to the top."""
        before = self._messages_before(turn)
        if before < len(self.transcript.views):
            self.transcript.scroll_to_view(self.transcript.views[before])

    def show_waiting(self, waiting: int) -> None:
        """So many requests wait at the head."""
        self._waiting = waiting

    def note(self, answering: Answering, text: str) -> None:
        """Something happened in the fleet while an answer came."""
        notes = next((notes for answer, notes in self._notes if answer is answering.answer), None)
        if notes is None:
            notes = []
            self._notes.append((answering.answer, notes))
        notes.append(f"{strftime('%H:%M:%S')} {one_line(text, 200)}")
        if answering is self._live:
            self._draw()

    def answer_changed(self, answering: Answering) -> None:
        """More of an answer is there, or it has ended."""
        if answering is not self._live:
            return
        if not answering.is_running:
            self._draw()
            self._live = None
        elif self._timer is None:
            self._timer = self.set_timer(max(self._next_drawing - monotonic(), 0.001), self._draw)

    # copying

    def copy_next(self) -> Copied | None:
        """The newest answer, then its code blocks; None: there is no answer."""
        if self._last is None:
            return None
        self._flush()
        answer, view = self._last
        view.parse_all()
        return self._cycle.take(answer, view.copy_text(), view.codes)

    def copy_wanted(self, wanted: CopyWanted) -> Copied | None:
        """What was clicked."""
        view = wanted.view
        if wanted.code is None:
            text = view.copy_text()
            return Copied(text, f"the message, {amount(text)}")
        if not isinstance(view, AnswerView) or wanted.code >= len(view.codes):
            return None
        code = view.codes[wanted.code]
        return Copied(code.text, f"{code_name(view.codes, wanted.code)}, {amount(code.text)}")

    # parts

    def _messages_before(self, turn: int) -> int:
        return sum(1 + (each.answer is not None) for each in self._conversation.turns[:turn])

    def _views_of(self, index: int) -> list[MessageView]:
        turn = self._conversation.turns[index]
        views: list[MessageView] = [
            QuestionView(partial(title, "You", style="bold $text-accent"), turn.question, turn.attachments)
        ]
        answer = turn.answer
        if answer is not None:
            which = f"{turn.shown + 1} of {len(turn.answers)}" if len(turn.answers) > 1 else ""
            detail = " · ".join(filter(None, (one_line(answer.model, 40), which)))
            view = AnswerView(partial(title, "Answer", detail=detail), answer.text, partial(self._tail, answer))
            self._last = answer, view
            views.append(view)
        return views

    def _tail(self, answer: Answer) -> Sequence[Block]:
        notes = next((notes for noted, notes in self._notes if noted is answer), [])
        blocks: list[Block] = [TextBlock(Content.styled(f"◆ {note}", "$text-warning")) for note in notes[-_MOST_NOTES:]]
        if answer.state != "running":
            blocks += footer(answer)
        elif self._live is not None and self._live.answer is answer:
            blocks.append(TextBlock(Content.styled(self._live_words(self._live), MUTED)))
        return [TextBlock(EMPTY), *blocks] if blocks else []

    def _live_words(self, live: Answering) -> str:
        if live.first_piece is None:
            others = f", {self._waiting} waiting at the head" if self._waiting else ""
            return f"… waiting for the first token, {monotonic() - live.began:.0f} s{others}"
        rate = f"~{live.rate:.1f} tok/s, " if live.rate is not None else ""
        return f"… {rate}{live.pieces:,} piece{'s' * (live.pieces != 1)} (escape stops)"

    def _flush(self) -> None:
        if self._live is not None and self._last is not None:
            self._live.take_new()
            self._last[1].follow(self._live.answer.text)

    def _draw(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if self._live is None or self._last is None:
            return
        start = perf_counter()
        self._flush()
        self.transcript.update_view(self._last[1])
        self._next_drawing = monotonic() + max(_FRAME, _REST * (perf_counter() - start))

    def _tick(self) -> None:
        if self._live is not None and self._timer is None:
            self._draw()
