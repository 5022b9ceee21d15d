"""POST /tokenize: what a prompt comes to in tokens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from agent.api.schemas import TokenizeRequest

if TYPE_CHECKING:
    from agent.api.prompts import Prompts


class Tokenize:
    """The endpoint.

    Args:
        prompts: Reads prompts.
        context_length: Tokens the model's context holds.
    """

    def __init__(self, prompts: Prompts, context_length: int) -> None:
        self._prompts, self._context_length = prompts, context_length
        self.router = APIRouter()
        self.router.post("/tokenize", response_model=None)(self.tokenize)

    async def tokenize(self, body: TokenizeRequest) -> JSONResponse:
        """Token ids of a conversation or a text, as a completion of it would have them."""
        self._prompts.check_model(body.model)
        if body.messages is not None:
            tokens = await self._prompts.conversation(body.messages)
        else:
            tokens = await self._prompts.text(body.prompt or "")
        told = {"count": len(tokens), "max_model_len": self._context_length, "tokens": tokens}
        return await asyncio.to_thread(JSONResponse, told)  # a million numbers take a while to write
