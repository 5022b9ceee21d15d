"""Loading running models with users, and what that gave."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from uuid import uuid4

from pipeline.head import Head
from pipeline.messages import Failed, Request, RequestEvent, Sampling, TokenEvent

_GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Load:
    """What some users got: each asks once, all at the same time."""

    seconds: float
    """From the first question to the end of the last answer."""
    first_token_seconds: tuple[float, ...]
    tokens: tuple[tuple[int, ...], ...]
    """The answer of each user."""

    decode_tokens_per_second: float
    """Of all users together, from when each has its first token: prompts are another matter."""

    @property
    def tokens_per_second(self) -> float:
        """Of all users together, prompts and all."""
        return sum(map(len, self.tokens)) / self.seconds


def run_load(heads: Sequence[Head], prompts: Sequence[tuple[int, ...]], new_tokens: int) -> Load:
    """Have a user ask each prompt, dealt to the heads in turn, and wait for `new_tokens` (2 or more) greedy tokens.

    Raises:
        EdgeAgentError: a request failed.
    """
    users = [_User() for _ in prompts]
    began = perf_counter()
    for number, (user, prompt) in enumerate(zip(users, prompts, strict=True)):
        request = Request(uuid4().hex, prompt, _GREEDY, new_tokens)
        heads[number % len(heads)].submit(request, user.hear)
    for user in users:
        user.ended.wait()
        if user.error is not None:
            raise user.error
    first = [user.times[0] for user in users]
    end, start = max(user.times[-1] for user in users), max(first)
    decoded = sum(time > start for user in users for time in user.times)
    return Load(
        seconds=end - began,
        first_token_seconds=tuple(time - began for time in first),
        tokens=tuple(tuple(user.tokens) for user in users),
        decode_tokens_per_second=decoded / (end - start),
    )


class _User:
    """Hears the events of one request, on the head's thread."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.times: list[float] = []
        self.error: Exception | None = None
        self.ended = threading.Event()

    def hear(self, event: RequestEvent) -> None:
        if isinstance(event, TokenEvent):
            self.times.append(perf_counter())
            self.tokens.append(event.token.token)
            return
        if isinstance(event, Failed):
            self.error = event.error
        self.ended.set()
