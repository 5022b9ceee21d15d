"""A conversation: questions, the answers to them, and what they were asked with. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from tui.chat.attachment import Attachment, with_attachments
from tui.chat.settings import Settings
from tui.chat.text import MendedText, mend
from tui.client.head_client import End, Message
from tui.client.plain import one_line

FORMAT: Final = 1
"""Of a conversation's file. It grows whenever versions before could not read, or would lose, what is in it."""
TITLE_WIDTH = 60
"""Of a title made from a question."""
LABEL_WIDTH = 200


def new_id() -> str:
    """An id that no other conversation has."""
    return uuid.uuid4().hex


def _or_none(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError:
        return None


class _Part(BaseModel):
    # forbid: what is not understood would be lost with the next save
    model_config = ConfigDict(validate_assignment=True, extra="forbid")


class Seen(_Part):
    """What the screen saw of an answer that did not come to its end; a piece is about a token."""

    pieces: int
    first_piece_ms: float
    pieces_per_second: float | None = None


class Answer(_Part):
    """An answer, as far as it came."""

    text: MendedText = ""
    state: Literal["running", "whole", "stopped", "broken"] = "running"
    error: MendedText = ""
    """Why it broke off."""
    model: MendedText = ""
    context: int | None = None
    """Tokens that this model takes; None: unknown."""
    end: Annotated[End | None, WrapValidator(_or_none)] = None
    """Its statistics, once it is whole. Those that cannot be read are no reason to refuse a conversation."""
    seen: Annotated[Seen | None, WrapValidator(_or_none)] = None
    """What there is instead where it did not come to its end."""

    def add(self, text: str) -> None:
        """More of it came."""
        # past the validation of an assignment, which would go over all of a long answer for each of its tokens
        self.__dict__["text"] = self.text + mend(text)

    def finish(self, end: End) -> None:
        """It is whole."""
        self.state, self.end = "whole", end

    def stop(self, seen: Seen | None = None) -> None:
        """The user stopped it; what came is kept."""
        self.state, self.seen = "stopped", seen

    def break_off(self, error: str, seen: Seen | None = None) -> None:
        """It broke off; what came is kept."""
        self.state, self.error, self.seen = "broken", error, seen


class Turn(_Part):
    """A question and its answers; more than one if it was answered again."""

    question: MendedText
    attachments: tuple[Attachment, ...] = ()
    answers: list[Answer] = []
    shown: int = 0
    """Which of the answers is shown and goes into the context."""

    @property
    def answer(self) -> Answer | None:
        """The one that is shown."""
        return self.answers[self.shown] if 0 <= self.shown < len(self.answers) else None

    @property
    def content(self) -> str:
        """The question as it is sent: with its attachments."""
        return with_attachments(self.question, self.attachments)


class SetAside(_Part):
    """Turns from `index` on that an edit replaced."""

    index: int
    turns: list[Turn]


class Conversation(_Part):
    """Turns, oldest first. Texts are mended when they come in, so each can be saved and sent."""

    id: str = Field(default_factory=new_id, exclude=True, description="its file's name says it")
    format: Literal[1] = FORMAT
    title: MendedText = ""
    """Empty until the first question names it or the user does; see `label`."""
    created: float = 0.0
    """Seconds since 1970, of the first question."""
    used: float = 0.0
    """Of the last question or answer."""
    system_prompt: MendedText = ""
    settings: Settings = Settings()
    draft: MendedText = ""
    """What is being typed. Assign it and save, so that it survives."""
    draft_attachments: tuple[Attachment, ...] = ()
    turns: list[Turn] = []
    set_aside: list[SetAside] = []
    """By edits, oldest first."""

    @property
    def label(self) -> str:
        """One line to show it by; never empty."""
        return one_line(self.title, LABEL_WIDTH) or "New conversation"

    @property
    def is_empty(self) -> bool:
        """There is nothing in it worth keeping."""
        return not (self.turns or self.draft or self.draft_attachments or self.title or self.system_prompt)

    def ask(self, question: str, attachments: Sequence[Attachment] = (), *, now: float) -> Turn:
        """Add a question; the first names the conversation, if it has no name. `now` is in seconds since 1970."""
        turn = Turn(question=question, attachments=tuple(attachments))
        self.turns.append(turn)
        self.used = now
        self.created = self.created or now
        if not self.title:
            first_line = next((line for line in turn.question.splitlines() if line.strip()), "")
            self.title = one_line(first_line or ", ".join(file.name for file in attachments), TITLE_WIDTH)
        return turn

    def begin_answer(self, model: str = "", context: int | None = None, *, now: float) -> Answer:
        """A new answer to the last question: the first, or another one; the earlier ones stay in `answers`.

        Raises:
            ValueError: Nothing was asked, or an answer is running.
        """
        if not self.turns:
            raise ValueError("nothing was asked")
        turn = self.turns[-1]
        if any(answer.state == "running" for answer in turn.answers):
            raise ValueError("an answer is running")
        answer = Answer(model=model, context=context)
        turn.answers[:] = [*(answer for answer in turn.answers if answer.text), answer]
        turn.shown = len(turn.answers) - 1
        self.used = now
        return answer

    def show_answer(self, index: int) -> None:
        """Show another answer to the last question; only to this one, since later questions build on what was shown.

        Raises:
            IndexError: There is no such answer.
        """
        turn = self.turns[-1]
        if not 0 <= index < len(turn.answers):
            raise IndexError(index)
        turn.shown = index

    def edit(self, index: int, question: str, attachments: Sequence[Attachment] = (), *, now: float) -> Turn:
        """Ask turn `index` anew; it and those after it are set aside (see `bring_back`).

        Raises:
            IndexError: There is no such turn.
        """
        if not 0 <= index < len(self.turns):
            raise IndexError(index)
        self.set_aside.append(SetAside(index=index, turns=self.turns[index:]))
        del self.turns[index:]
        return self.ask(question, attachments, now=now)

    @property
    def can_bring_back(self) -> bool:
        """Something was set aside by an edit, and what it built on is still there."""
        return bool(self.set_aside) and self.set_aside[-1].index <= len(self.turns)

    def bring_back(self) -> None:
        """Change the turns for those that the last edit set aside; doing it again changes them back.

        Raises:
            ValueError: There are none.
        """
        if not self.can_bring_back:
            raise ValueError("nothing was set aside")
        aside = self.set_aside[-1]
        self.turns[aside.index :], aside.turns = aside.turns, self.turns[aside.index :]

    def messages(self) -> list[Message]:
        """What to send so that the last question is answered; its own answers are not in it.

        Questions without any answer are put together with the next one: many chat templates take only questions and
        answers in turn.
        """
        messages = [Message("system", self.system_prompt)] if self.system_prompt.strip() else []
        waiting: list[str] = []
        for position, turn in enumerate(self.turns):
            waiting.append(turn.content)
            is_last = position == len(self.turns) - 1
            answer = turn.answer
            if is_last or (answer is not None and answer.text):
                messages.append(Message("user", "\n\n".join(waiting)))
                waiting = []
            if not is_last and answer is not None and answer.text:
                messages.append(Message("assistant", answer.text))
        return messages

    def texts(self) -> Iterator[tuple[int | None, str]]:
        """All texts in it with the turn they belong to, for searching; those of answers not shown and set aside too."""
        for text in (self.system_prompt, self.draft):
            yield None, text
        for file in self.draft_attachments:
            yield None, file.text
        for index, turn in enumerate(self.turns):
            for text in _texts(turn):
                yield index, text
        for aside in self.set_aside:
            for turn in aside.turns:
                for text in _texts(turn):
                    yield None, text

    def end_running(self, error: str) -> None:
        """Mark answers as broken that nobody is writing any more: the program ended before they did."""
        for turns in (self.turns, *(aside.turns for aside in self.set_aside)):
            for turn in turns:
                for answer in turn.answers:
                    if answer.state == "running":
                        answer.break_off(error)


def _texts(turn: Turn) -> Iterator[str]:
    yield turn.question
    for file in turn.attachments:
        yield file.name
        yield file.text
    for answer in turn.answers:
        yield answer.text
