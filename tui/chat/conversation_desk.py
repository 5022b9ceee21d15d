"""The open conversation: what was said, what is being typed, and the answers on their way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static
from textual.worker import Worker

from tui.chat.answering import Answering
from tui.chat.attachment import Attachment, with_attachments
from tui.chat.composer import Composer
from tui.chat.conversation import Conversation
from tui.chat.conversation_view import ConversationView
from tui.chat.copying import Copied
from tui.chat.settings import BEGINNING
from tui.chat.state_line import why_not
from tui.chat.state_view import StateView
from tui.chat.transcript import CopyWanted, Transcript
from tui.client import head_client
from tui.client.head_client import HeadClient
from tui.client.plain import clean
from tui.client.watch import Connection, FleetChanged


class ConversationDesk(Vertical):
    """Asks the head, and shows what it answers. Answers to other conversations go on when one is opened.

    Args:
        save: Called with a conversation that has changed.
        id: The widget's.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", tooltip="Stop the answer; what came is kept"),
        Binding("ctrl+r", "regenerate", "Again", priority=True, tooltip="Answer again"),
        Binding("ctrl+e", "edit", "Edit", priority=True, tooltip="Edit my last message and resend it"),
        Binding("ctrl+y", "copy", "Copy", priority=True, tooltip="Copy the answer; again: its code blocks in turn"),
        Binding("f9", "other_answer", "Other answer", priority=True, show=False, tooltip="Show another answer"),
        Binding("alt+e", "bring_back", "Undo edit", priority=True, show=False, tooltip="What the last edit replaced"),
        Binding("f6", "change_focus", "Text/messages", priority=True, show=False, tooltip="From text to messages"),
    ]
    DEFAULT_CSS = """
    ConversationDesk {
        height: 1fr;
        #notice {
            height: auto;
            max-height: 4;
            padding: 0 1;
            color: $text-error;
            &.-none { display: none; }
        }
    }
    """

    class Typed(Message):
        """What is being typed has changed."""

    def __init__(self, save: Callable[[Conversation], None], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.client: HeadClient | None = None
        self.conversation = Conversation(settings=BEGINNING)
        self._save = save
        self._view, self._composer, self._state = ConversationView(), Composer(), StateView()
        self._notice = Static(id="notice", classes="-none", markup=False)
        self._answerings: list[tuple[Answering, Worker[None]]] = []
        """Those that run, of any conversation."""
        self._stash: tuple[str, tuple[Attachment, ...]] | None = None
        """What was being typed when the last message began to be edited."""

    def compose(self) -> ComposeResult:
        """The conversation, why something does not go, what is being typed, and the state of things."""
        yield self._view
        yield self._notice
        yield self._composer
        yield self._state

    def on_mount(self) -> None:
        """Begin with nothing."""
        self._view.show(self.conversation, None)

    def focus(self, scroll_visible: bool = True) -> ConversationDesk:
        """Give the focus to what is being typed."""
        self._composer.focus(scroll_visible)
        return self

    @property
    def opened(self) -> list[Conversation]:
        """Those that live in memory: the open one, and those being answered."""
        return [self.conversation, *(answering.conversation for answering, _ in self._answerings)]

    def open(self, conversation: Conversation, turn: int | None = None) -> None:
        """Show another conversation, and a turn of it."""
        self._keep_edited()
        self._end_editing()
        self.conversation = conversation
        running = self._here()
        self._view.show(conversation, running[0] if running is not None else None)
        self._composer.fill(conversation.draft, conversation.draft_attachments)
        self._say("")
        self.count()
        if turn is not None:
            self._view.scroll_to_turn(turn)

    def show_label(self) -> None:
        """The title has changed."""
        self._view.show_label()

    def stop(self, id: str) -> None:
        """Stop the answer to a conversation."""
        for answering, worker in self._answerings.copy():
            if answering.conversation.id == id:
                answering.stop()
                worker.cancel()

    def settle(self) -> None:
        """Stop all answers, and keep what is being typed: the program ends."""
        self._keep_edited()
        for answering, _ in self._answerings.copy():
            answering.stop()

    def flush(self) -> list[Conversation]:
        """Put what came into the answers on their way; returns their conversations."""
        for answering, _ in self._answerings:
            answering.take_new()
        return [answering.conversation for answering, _ in self._answerings]

    # news

    def show_connection(self, connection: Connection) -> None:
        """Take news of the head."""
        was_up = self._state.line.is_up
        self._state.show_connection(connection)
        if self._state.line.is_up and not was_up:
            self._say("")
            self.count()

    def show_fleet(self, change: FleetChanged) -> None:
        """Take a new state of the fleet."""
        fleet = change.fleet
        self._state.show_model(fleet.model)
        self._view.show_waiting(fleet.parked + sum(chain.scheduler.waiting for chain in fleet.chains))
        for event in change.news:
            for answering, _ in self._answerings:
                self._view.note(answering, event.what)

    # sending

    def on_composer_submitted(self, event: Composer.Submitted) -> None:
        """Ask the head; whatever is in the way of that, the text stays."""
        event.stop()
        composer = self._composer
        if composer.is_empty or not self._can_ask():
            return
        text, attachments, now = composer.text, composer.attachments, time.time()
        turns = self.conversation.turns
        if self._stash is not None and turns:
            self.conversation.edit(len(turns) - 1, text, attachments, now=now)
            self._end_editing()
        else:
            self.conversation.ask(text, attachments, now=now)
            composer.clear()
        self._begin_answer()

    def _can_ask(self) -> bool:
        if self._here() is not None:
            self._say("An answer is on its way; escape stops it. Your text stays here.")
            return False
        problem = why_not(self._state.line.connection if self.client is not None else None)
        self._say(problem or "")
        return problem is None

    def _begin_answer(self) -> None:
        assert self.client is not None
        conversation = self.conversation
        answer = conversation.begin_answer(self._state.line.model, self._state.line.context, now=time.time())
        answering = Answering(conversation, answer, self._answer_changed)
        worker = self.run_worker(answering.run(self.client), group="answer", exit_on_error=False)
        self._answerings.append((answering, worker))
        self.refresh_bindings()
        self._view.show_label()
        self._view.show_last(answering)
        self._save(conversation)

    def _answer_changed(self, answering: Answering) -> None:
        self._view.answer_changed(answering)
        if not answering.is_running:
            self._answerings = [pair for pair in self._answerings if pair[0] is not answering]
            self.refresh_bindings()
            self._save(answering.conversation)
            self.count()

    def _here(self) -> tuple[Answering, Worker[None]] | None:
        return next((pair for pair in self._answerings if pair[0].conversation is self.conversation), None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """There is not always something to stop."""
        return action != "stop" or self._here() is not None or self._stash is not None

    def action_stop(self) -> None:
        """Stop the answer, or give up editing."""
        if self._here() is not None:
            self.stop(self.conversation.id)
        elif self._stash is not None:
            self._end_editing()
        self._say("")

    def action_regenerate(self) -> None:
        """Answer the last question again; the answer before is kept."""
        if not self.conversation.turns:
            self._say("There is no question to answer again.")
        elif self._can_ask():
            self._begin_answer()

    def action_edit(self) -> None:
        """Have the last message in the composer; what was there comes back afterwards."""
        turns = self.conversation.turns
        if self._stash is not None or not turns:
            self._say("" if turns else "There is no message to edit yet.")
        elif self._here() is not None:
            self._say("An answer is on its way; escape stops it.")
        else:
            composer = self._composer
            self._stash = composer.text, composer.attachments
            composer.fill(turns[-1].question, turns[-1].attachments)
            composer.say("Edit my last message: enter resends, escape gives up")
            self.refresh_bindings()
            self.focus()

    def _keep_edited(self) -> None:
        """What was made of the last message, and not sent, becomes what is being typed."""
        edited, turns = self._composer.text, self.conversation.turns
        if self._stash is not None and turns and edited.strip() and edited != turns[-1].question:
            before, attachments = self._stash
            self._stash = "\n\n".join(filter(None, (before, edited))), attachments
            self.conversation.draft = self._stash[0]

    def _end_editing(self) -> None:
        """What was being typed before comes back."""
        if self._stash is not None:
            self._composer.fill(*self._stash)
            self._composer.say("")
            self._stash = None
            self.refresh_bindings()

    def action_other_answer(self) -> None:
        """Show the next of the answers to the last question."""
        turn = self.conversation.turns[-1] if self.conversation.turns else None
        if turn is not None and len(turn.answers) > 1 and self._here() is None:
            self.conversation.show_answer((turn.shown + 1) % len(turn.answers))
            self._view.show_last(None)
            self._save(self.conversation)
            self.count()

    def action_bring_back(self) -> None:
        """Change the turns for those that the last edit replaced."""
        if self.conversation.can_bring_back and self._here() is None:
            self.conversation.bring_back()
            self._view.show(self.conversation, None)
            self._save(self.conversation)
            self.count()

    def action_copy(self) -> None:
        """Copy the newest answer; again: its code blocks in turn."""
        copied = self._view.copy_next()
        if copied is None:
            self.notify("There is no answer to copy yet.", markup=False)
        else:
            self._copy(copied)

    def on_copy_wanted(self, event: CopyWanted) -> None:
        """Copy what was clicked."""
        event.stop()
        if (copied := self._view.copy_wanted(event)) is not None:
            self._copy(copied)

    def _copy(self, copied: Copied) -> None:
        self.app.copy_to_clipboard(copied.text)
        self.notify(f"Copied {copied.what}.", markup=False)

    def action_change_focus(self) -> None:
        """From what is typed to the messages, and back."""
        if self._composer.area.has_focus:
            self._view.transcript.focus()
        else:
            self.focus()

    def on_key(self, event: events.Key) -> None:
        """Typing goes into the composer, also while the messages have the focus."""
        if event.is_printable and event.character and isinstance(self.app.focused, Transcript):
            event.stop()
            self.focus()
            self._composer.area.insert(event.character)

    def on_composer_changed(self, event: Composer.Changed) -> None:
        """Keep what is being typed, and count it."""
        event.stop()
        if self._stash is None:
            self.conversation.draft = self._composer.text
            self.conversation.draft_attachments = self._composer.attachments
            self.post_message(self.Typed())
        self.count()

    def attach(self, attachment: Attachment) -> None:
        """Let a file go along with the question."""
        self._composer.attach(attachment)

    def count(self) -> None:
        """How many tokens the conversation takes, with what is being typed."""
        turns = self.conversation.turns
        characters = len(self._composer.text) + sum(len(file.text) for file in self._composer.attachments)
        for turn in turns:
            characters += len(turn.question) + sum(len(file.text) for file in turn.attachments)
            characters += len(turn.answer.text) if turn.answer is not None else 0
        self._state.count(self.client if self._here() is None else None, self._counted, characters)

    def _counted(self) -> list[head_client.Message]:
        messages = self.conversation.messages()
        answer = self.conversation.turns[-1].answer if self.conversation.turns else None
        if answer is not None and answer.text:
            messages.append(head_client.Message("assistant", answer.text))
        if not self._composer.is_empty:
            typed = with_attachments(self._composer.text, self._composer.attachments)
            messages.append(head_client.Message("user", typed))
        return messages

    def _say(self, text: str) -> None:
        """Say over the composer why something does not go; an empty text: all is well."""
        self._notice.set_class(not text, "-none")
        self._notice.update(Content(f"▲ {clean(text)}" if text else ""))
