"""A prompt that arrives while other answers are being decoded: what it waits, and how the others pause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from queue import Empty, SimpleQueue
from time import perf_counter
from uuid import uuid4

from agent.bench.load import GREEDY, Asked, User
from pipeline.messages import Request

SETTLED_TOKENS = 12
"""Of each answer that is being decoded, before the newcomer arrives."""

_NEWCOMER_TOKENS = 4
_POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Arrived:
    """What came of it, in seconds."""

    first_token: float
    """Of the newcomer."""
    before: tuple[float, ...]
    """Between tokens of the other answers, from when all were being decoded until it arrived."""
    during: tuple[float, ...]
    """The same from then until it had its first token."""


def arrive(side: Asked, decoding: Sequence[tuple[int, ...]], newcomer: tuple[int, ...], most_tokens: int) -> Arrived:
    """Have users ask the prompts `decoding`; when all are being answered, have another ask `newcomer`.

    Args:
        side: What is asked.
        decoding: Prompts of the others.
        newcomer: Prompt of the newcomer.
        most_tokens: Of the others' answers, which are cancelled when the newcomer has its own.

    Raises:
        EdgeAgentError: a request failed.
    """
    began = perf_counter()
    ended: SimpleQueue[User] = SimpleQueue()
    users: dict[str, User] = {}

    def ask(prompt: tuple[int, ...], new_tokens: int) -> User:
        user = User(perf_counter() - began, began, ended)
        request = Request(uuid4().hex, prompt, GREEDY, new_tokens)
        users[request.id] = user
        side.submit(request, user.hear)
        return user

    def wait(until: Sequence[User], tokens: int) -> None:
        while any(len(user.answer.times) < tokens for user in until):
            try:
                failed = ended.get(timeout=_POLL_SECONDS).error
            except Empty:
                continue
            if failed is not None:
                raise failed

    try:
        others = [ask(prompt, most_tokens) for prompt in decoding]
        wait(others, SETTLED_TOKENS)
        new = ask(newcomer, _NEWCOMER_TOKENS)
        wait([new], _NEWCOMER_TOKENS)
    finally:
        for request_id in users:
            side.cancel(request_id)
    asked, first = new.answer.asked, new.answer.times[0]
    settled = max(user.answer.times[0] for user in others)
    pairs = [pair for user in others for pair in pairwise(user.answer.times)]
    return Arrived(
        first - asked,
        before=tuple(after - before for before, after in pairs if settled <= before and after <= asked),
        during=tuple(after - before for before, after in pairs if after > asked and before < first),
    )
