"""Reading prompts: what every endpoint does that takes one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from agent.api.errors import ApiError
from agent.api.schemas import Message
from pipeline.chat_template import ChatTemplate

if TYPE_CHECKING:
    from agent.served import Served

_T = TypeVar("_T")

_READERS = 2
"""Prompts read at once. There are few threads, and /healthz must not wait for one behind long prompts."""


class Prompts:
    """Conversations and texts to token ids, for the model that is served."""

    def __init__(self, model: Served) -> None:
        self._tokenizer, self._facts = model.tokenizer, model.manifest.facts
        self._template = ChatTemplate(self._facts.chat_template, self._facts.bos_text, self._facts.eos_text)
        self._reading = asyncio.Semaphore(_READERS)

    def check_model(self, name: str | None) -> None:
        """Raises ApiError if another model is asked for."""
        if name not in (None, self._facts.name):
            message = f"there is no model {name!r} here, only {self._facts.name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    async def conversation(self, messages: Sequence[Message]) -> list[int]:
        """A conversation, as the model's template puts it.

        Raises:
            RequestError: the template does not take it.
        """
        return await self._read(self._read_conversation, messages)

    async def text(self, text: str) -> list[int]:
        """A text."""
        return await self._read(self._tokenizer.encode, text)

    async def _read(self, read: Callable[[_T], list[int]], what: _T) -> list[int]:
        """Not on the loop, where the other answers' tokens pass, since a long one takes a while."""
        async with self._reading:
            return await asyncio.to_thread(read, what)

    def _read_conversation(self, messages: Sequence[Message]) -> list[int]:
        knows_developer = "developer" in (self._facts.chat_template or "")
        plain = [
            {
                "role": "system" if message.role == "developer" and not knows_developer else message.role,
                "content": message.content,
                **({"name": message.name} if message.name else {}),
            }
            for message in messages
        ]
        return self._tokenizer.encode(self._template.render(plain), special=False)
