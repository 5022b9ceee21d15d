"""Loading what takes requests with users, and what that gave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Protocol
from uuid import uuid4

from agent.bench.arrivals import ClosedLoop, Traffic
from pipeline.head import Listener
from pipeline.messages import Failed, Request, RequestEvent, Sampling, TokenEvent

GREEDY = Sampling(temperature=0.0)

_POLL_SECONDS = 0.2
"""How often a wait looks up, because on Windows a Ctrl-C does not interrupt it."""


Ask = Callable[[tuple[int, ...], int], Request]
"""Makes a request of a prompt and a number of new tokens."""


class Asked(Protocol):
    """What is used of a side: a head, several behind one face, or a control of the same face."""

    def submit(self, request: Request, listener: Listener) -> None:
        """Take a request; its events come to the listener, from any thread."""
        ...

    def cancel(self, request: str) -> None:
        """End a request early."""
        ...


@dataclass(slots=True)
class Answer:
    """One question: when it was due and when each token of its answer came, in seconds from the beginning."""

    asked: float
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def first_token(self) -> float:
        """Seconds from the question to the first token."""
        return self.times[0] - self.asked

    @property
    def gaps(self) -> list[float]:
        """Seconds between one token and the next."""
        return [after - before for before, after in pairwise(self.times)]


@dataclass(frozen=True, slots=True)
class Load:
    """What some users got; each answer has at least two tokens."""

    answers: tuple[Answer, ...]
    """In the order of the questions."""

    @property
    def seconds(self) -> float:
        """From the first question to the end of the last answer."""
        return max(answer.times[-1] for answer in self.answers) - min(answer.asked for answer in self.answers)

    @property
    def tokens(self) -> tuple[tuple[int, ...], ...]:
        """The answers."""
        return tuple(tuple(answer.tokens) for answer in self.answers)

    @property
    def first_token_seconds(self) -> tuple[float, ...]:
        """Of each question."""
        return tuple(answer.first_token for answer in self.answers)

    @property
    def between_token_seconds(self) -> tuple[float, ...]:
        """Of all answers together."""
        return tuple(gap for answer in self.answers for gap in answer.gaps)

    @property
    def tokens_per_second(self) -> float:
        """Of all users together, prompts and all."""
        return sum(len(answer.times) for answer in self.answers) / self.seconds

    @property
    def decode_tokens_per_second(self) -> float:
        """Of all users together, while every one of them is being answered: prompts are another matter.

        Where some had their last token before others had their first, while none waits for a first token.
        """
        rate = self.decode_rate(len(self.answers)) or self.decode_rate()
        assert rate is not None  # the last answer ends after its own first token
        return rate

    def decode_rate(self, users: int = 1, least_tokens: int = 1) -> float | None:
        """Tokens a second while at least so many are being answered and none waits for a first token.

        None if fewer than `least_tokens` came in all that time.
        """
        changes: list[tuple[float, int, int, int]] = []  # time; of those asked, waiting; tokens
        for answer in self.answers:
            changes.append((answer.asked, 1, 1, 0))
            changes.append((answer.times[0], 0, -1, 0))
            changes += [(time, 0, 0, 1) for time in answer.times[1:]]
            changes.append((answer.times[-1], -1, 0, 0))
        decoded, seconds, before = 0, 0.0, 0.0
        asked = waiting = 0
        for time, more_asked, more_waiting, tokens in sorted(changes, key=lambda change: change[0]):
            if asked >= users and not waiting:
                seconds += time - before
                decoded += tokens
            asked, waiting, before = asked + more_asked, waiting + more_waiting, time
        return decoded / seconds if decoded >= least_tokens else None


def past_any_end(prompt: tuple[int, ...], new_tokens: int) -> Request:
    """An Ask: for so many greedy tokens, past any stop token."""
    return Request(uuid4().hex, prompt, GREEDY, new_tokens)


def run_traffic(
    side: Asked, traffic: Traffic, prompts: Sequence[tuple[int, ...]], new_tokens: int, ask: Ask = past_any_end
) -> Load:
    """Ask a side the prompts in turn, as often as the traffic wants, for `new_tokens` (2 or more) each.

    Raises:
        EdgeAgentError: a request failed; the others have been cancelled.
    """
    arrivals = traffic.begin()
    ended: SimpleQueue[User] = SimpleQueue()
    users: dict[str, User] = {}
    open_ = 0
    began = perf_counter()
    try:
        while True:
            for due in arrivals.take(perf_counter() - began):
                user = User(due, began, ended)
                request = ask(prompts[len(users) % len(prompts)], new_tokens)
                users[request.id] = user
                open_ += 1
                side.submit(request, user.hear)
            if not open_ and arrivals.is_over:
                return Load(tuple(user.answer for user in users.values()))
            until = _POLL_SECONDS
            if arrivals.next is not None:
                until = min(until, max(0.0, arrivals.next - (perf_counter() - began)))
            try:
                user = ended.get(timeout=until)
            except Empty:
                continue
            if user.error is not None:
                raise user.error
            open_ -= 1
            arrivals.answered()
    except BaseException:
        for request_id in users:
            side.cancel(request_id)
        raise


def run_load(heads: Sequence[Asked], prompts: Sequence[tuple[int, ...]], new_tokens: int) -> Load:
    """Have a user ask each prompt at the same time, dealt to the heads in turn; see `run_traffic`."""
    return run_traffic(_InTurn(heads), ClosedLoop(len(prompts), questions=len(prompts)), prompts, new_tokens)


class _InTurn:
    """Deals requests to several heads."""

    def __init__(self, heads: Sequence[Asked]) -> None:
        self._heads, self._count = heads, 0

    def submit(self, request: Request, listener: Listener) -> None:
        self._heads[self._count % len(self._heads)].submit(request, listener)
        self._count += 1

    def cancel(self, request: str) -> None:
        for head in self._heads:
            head.cancel(request)


class User:
    """Hears the events of one request.

    Args:
        asked: When the question was due.
        began: What `perf_counter` said at the beginning.
        ended: Where the user is put at the end of the answer.
    """

    def __init__(self, asked: float, began: float, ended: SimpleQueue[User]) -> None:
        self.answer = Answer(asked)
        self.error: Exception | None = None
        self._began, self._ended = began, ended

    def hear(self, event: RequestEvent) -> None:
        """A Listener."""
        if isinstance(event, TokenEvent):
            self.answer.times.append(perf_counter() - self._began)
            self.answer.tokens.append(event.token.token)
            return
        if isinstance(event, Failed):
            self.error = event.error
        self._ended.put(self)
