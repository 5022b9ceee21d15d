"""From the head's token events, on its thread, to text on the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol
from uuid import uuid4

from agent.answer_times import AnswerTimes
from agent.metrics import Metrics
from pipeline.averages import LastSteps
from pipeline.messages import (
    Failed,
    Finished,
    FinishReason,
    Request,
    RequestEvent,
    Sampling,
    Service,
    Token,
    TokenEvent,
    Usage,
)
from pipeline.text_stream import TextStream
from shards.errors import EdgeAgentError, OverloadedError, StageError

MAX_OPEN = 4096
"""Answers in the works at once on all chains, so that what is kept of them here is bounded; the chains' queues have
their own bounds."""

_RETRY_SECONDS = 5.0
"""When to come again if that is reached."""

_REFUSAL_SECONDS = 1.0
"""The head refuses within a few milliseconds what it refuses, on a busy PC within some more. Most first tokens come
before, and nobody else has anything to read until then."""


class CancelledByOwnerError(EdgeAgentError):
    """Whoever looks after the server has ended an answer."""


class Head(Protocol):
    """What is used of the head here."""

    def submit(self, request: Request, listener: Callable[[RequestEvent], None]) -> None:
        """Take a request; its events come to the listener on the head's thread."""
        ...

    def cancel(self, request: str) -> None:
        """End a request early."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """One answer that is asked for."""

    prompt: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    text: TextStream
    """Where its tokens become text."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new of an answer: tokens, the text they complete, and at the end the reason and the counts."""

    choice: int
    text: str
    tokens: tuple[Token, ...] = ()
    finish: FinishReason | None = None
    usage: Usage | None = None


class TextService:
    """Has answers made by a head. Lives on one event loop.

    Args:
        head: Makes the tokens.
        stop_tokens: Tokens that end an answer.
        metrics: Told what answers come to.
    """

    def __init__(self, head: Head, stop_tokens: frozenset[int], metrics: Metrics) -> None:
        self._head, self._stop_tokens, self._metrics = head, stop_tokens, metrics
        self._inbox: _Inbox | None = None
        self._active: set[Answers] = set()

    async def start(self, wanted: Sequence[Wanted], client: str = "", service: Service = "interactive") -> Answers:
        """Hand requests to the head; their answers come in pieces.

        Args:
            wanted: The answers that one call asks for.
            client: Whose call it is.
            service: How urgent it is.

        Raises:
            RequestError: one of them asks for something impossible.
            CapacityError: one of them is too large for the KV cache.
            OverloadedError: too many answers are in the works, or wait.
            StageError: the chain has failed.
        """
        count = sum(len(answers.open) for answers in self._active)
        if count + len(wanted) > MAX_OPEN:
            for _ in wanted:
                self._metrics.ended("refused", 0.0, None)
            raise OverloadedError(
                f"{count} answers are in the works, {len(wanted)} more are wanted, and at most {MAX_OPEN} may be",
                hint="Try again in a moment.",
                retry_seconds=_RETRY_SECONDS,
            )
        if self._inbox is None:
            self._inbox = _Inbox(asyncio.get_running_loop())
        answers = Answers(self._head, self._metrics, [one.text for one in wanted])
        self._active.add(answers)
        answers.on_close = lambda: self._active.discard(answers)
        try:
            for choice, one in enumerate(wanted):
                name = answers.request_id(choice)
                request = Request(
                    name, one.prompt, one.sampling, one.max_tokens, self._stop_tokens, client, service=service
                )
                self._head.submit(request, self._inbox.listener(answers, choice))
                answers.open.add(choice)
            await answers.accepted()
        except BaseException as error:
            answers.close(_ending(error))
            raise
        return answers

    def cancel(self, request: str) -> bool:
        """End a call in an error, for one of its answers' sake; False if none of this id is in the works."""
        for answers in self._active:
            if any(answers.request_id(choice) == request for choice in answers.open):
                answers.fail(CancelledByOwnerError("the answer was cancelled by the one who looks after this server"))
                return True
        return False

    def close(self) -> None:
        """End every answer in an error that says why."""
        for answers in list(self._active):
            answers.fail(StageError("the server is shutting down", hint="Ask again when it is back."))


class Answers:
    """The answers to one call, one for each choice; their pieces come as they are made."""

    def __init__(self, head: Head, metrics: Metrics, streams: list[TextStream]) -> None:
        self.id = uuid4().hex
        self.open: set[int] = set()
        """Choices that the head is at work on."""
        self.on_close: Callable[[], None] = lambda: None
        self._head, self._metrics, self._streams = head, metrics, streams
        self._counts = [0] * len(streams)
        self._events: deque[tuple[int, RequestEvent]] = deque()
        self._news = asyncio.Event()
        self._error: Exception | None = None
        self.times = AnswerTimes(perf_counter())

    def request_id(self, choice: int) -> str:
        """The head's name for one of the answers."""
        return f"{self.id}/{choice}"

    async def accepted(self) -> None:
        """Wait for the head to refuse, or not to; raises what it refuses with."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), _REFUSAL_SECONDS)
        for _, event in self._events:
            if isinstance(event, Failed):
                raise event.error

    async def pieces(self) -> AsyncGenerator[Piece]:
        """All that comes, until every answer has ended; leaving early cancels what is left.

        Raises:
            EdgeAgentError: an answer could not be finished.
        """
        try:
            while self.open:
                await self._news.wait()
                self._news.clear()
                for piece in self._take():
                    yield piece
                if self._error is not None:
                    raise self._error
        finally:
            self.close(_ending(self._error))

    def deliver(self, choice: int, event: RequestEvent) -> None:
        """Called by the inbox, on the event loop."""
        self._events.append((choice, event))
        self._news.set()

    def fail(self, error: Exception) -> None:
        """End in an error; the head stops at once, also where the client is slow to hear of it."""
        for choice in self.open:
            self._head.cancel(self.request_id(choice))
        self._error = error
        self._news.set()

    def close(self, reason: str) -> None:
        """Cancel what has not ended."""
        for choice in self.open:
            self._head.cancel(self.request_id(choice))
            self._metrics.ended(reason, self.times.since_begin(perf_counter()), None)
        self.open.clear()
        self.on_close()

    def _take(self) -> list[Piece]:
        """One piece of each choice that there is news of."""
        news: dict[int, list[RequestEvent]] = {}
        while self._events:
            choice, event = self._events.popleft()
            news.setdefault(choice, []).append(event)
        return [self._piece(choice, events) for choice, events in news.items() if choice in self.open]

    def _piece(self, choice: int, events: list[RequestEvent]) -> Piece:
        stream, text = self._streams[choice], ""
        tokens: list[Token] = []
        finish: FinishReason | None = None
        counted: Usage | None = None
        steps: LastSteps | None = None
        for event in events:
            match event:
                case TokenEvent(token=token) if not stream.is_stopped:
                    tokens.append(token)
                    text += stream.add(token.token)
                    if stream.is_stopped:  # nothing more is said; it ends when the head has let go of it
                        self._head.cancel(self.request_id(choice))
                case Finished(usage=usage, steps=steps) if stream.is_stopped:
                    finish, counted = "stop", usage
                case Failed(usage=usage) if stream.is_stopped:
                    finish, counted = "stop", usage
                case Finished(reason="cancelled"):
                    self._error = self._error or StageError("the server has cancelled the answer")
                case Finished(reason=reason, usage=usage, steps=steps):
                    text += stream.finish()
                    finish, counted = reason, usage
                case Failed(error=error):
                    self._error = self._error or error
        now = perf_counter()
        if self.times.add(now, len(tokens)):
            self._metrics.first_token(self.times.first_token)
        self._counts[choice] += len(tokens)
        if finish is None or counted is None:
            return Piece(choice, text, tuple(tokens))
        counted = replace(counted, completion=self._counts[choice])
        self.open.discard(choice)
        self.times.end(now, steps)
        self._metrics.ended(finish, self.times.since_begin(now), counted)
        return Piece(choice, text, tuple(tokens), finish, counted)


def _ending(error: BaseException | None) -> str:
    """What an answer that ends in an error counts as; None: its client has left."""
    match error:
        case None | CancelledByOwnerError() | asyncio.CancelledError():
            return "cancelled"
        case OverloadedError():
            return "refused"
        case _:
            return "failed"


class _Inbox:
    """Carries events from the head's thread to the loop, with one wake-up for all that come together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[tuple[Answers, int, RequestEvent]] = deque()
        self._woken = False

    def listener(self, answers: Answers, choice: int) -> Callable[[RequestEvent], None]:
        """The listener of one request."""
        return lambda event: self.post(answers, choice, event)

    def post(self, answers: Answers, choice: int, event: RequestEvent) -> None:
        """Called on the head's thread."""
        self._events.append((answers, choice, event))
        if not self._woken and not self._loop.is_closed():
            self._woken = True
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._woken = False  # before looking: what comes after the last look wakes the loop again
        while self._events:
            answers, choice, event = self._events.popleft()
            answers.deliver(choice, event)
