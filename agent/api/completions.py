"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from agent.api.guard import CALLER
from agent.api.replies import ChatReply, CompletionReply, Reply
from agent.api.schemas import ChatRequest, CompletionRequest
from agent.api.sse import EventStream, event, until_disconnected
from agent.service import Answers, Piece, TextService, Wanted
from pipeline.detokenizer import Detokenizer
from pipeline.messages import Sampling, Usage
from pipeline.text_stream import TextStream
from shards.errors import CapacityError, RequestError

if TYPE_CHECKING:
    from agent.api.prompts import Prompts
    from agent.api.timings import Timings
    from agent.served import Served

_LONGEST_CLIENT = 256
"""Characters of what a request says of whose it is; all who look at the fleet are told."""

_CLOSED = 499
"""A client's own word for having left before the answer; nobody reads it."""


class Completions:
    """Turns bodies into requests, and answers into replies."""

    def __init__(self, model: Served, service: TextService, prompts: Prompts, timings: Timings) -> None:
        self._service, self._prompts, self._timings = service, prompts, timings
        self._facts = facts = model.manifest.facts
        self._detokenizer = Detokenizer(model.tokenizer, facts.vocabulary)
        self._fingerprint = f"edge-{model.manifest.package_id[:12]}"
        self.router = APIRouter(prefix="/v1")
        self.router.post("/chat/completions", response_model=None)(self.chat)
        self.router.post("/completions", response_model=None)(self.complete)

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        self._prompts.check_model(body.model)
        prompt = await self._prompts.conversation(body.messages)
        try:
            answers = await self._start(body, [prompt], request, continues=False)
        except (RequestError, CapacityError) as error:
            if error.where == "prompt":  # the field is called otherwise here
                error.where = "messages"
            raise
        return await self._respond(answers, ChatReply(f"chatcmpl-{answers.id}", **self._reply(body)), body, request)

    async def complete(self, body: CompletionRequest, request: Request) -> Response:
        """Go on with a text."""
        self._prompts.check_model(body.model)
        prompts = [await self._prompts.text(prompt) if isinstance(prompt, str) else prompt for prompt in body.prompt]
        answers = await self._start(body, prompts, request, continues=True)
        return await self._respond(answers, CompletionReply(f"cmpl-{answers.id}", **self._reply(body)), body, request)

    async def _start(
        self, body: ChatRequest | CompletionRequest, prompts: list[list[int]], request: Request, *, continues: bool
    ) -> Answers:
        """Ask the head for every choice of every prompt."""
        seed = secrets.randbits(32) if body.seed is None else body.seed
        limit = body.limit or self._facts.context_length
        wanted = [
            Wanted(
                tuple(prompt),
                _sampling(body, seed + choice),
                limit,
                TextStream(self._detokenizer.stream(continues=continues), body.stop or ()),
            )
            for prompt in prompts
            for choice in range(body.n or 1)
        ]
        return await self._service.start(wanted, _client(body, request), body.service)

    def _reply(self, body: ChatRequest | CompletionRequest) -> dict[str, Any]:
        return {
            "model": self._facts.name,
            "fingerprint": self._fingerprint,
            "token_bytes": self._detokenizer.token_bytes,
            "logprobs": body.wanted_logprobs is not None,
            "usage_asked": body.stream_options is not None and body.stream_options.include_usage,
            "per_prompt": body.n or 1,
            "service_tier": body.served_tier,
        }

    async def _respond(
        self, answers: Answers, reply: Reply, body: ChatRequest | CompletionRequest, request: Request
    ) -> Response:
        if body.stream:
            return EventStream(self._events(answers, reply))
        choices = await _gather(answers, request)
        if choices is None:
            return Response(status_code=_CLOSED)
        return JSONResponse(reply.whole(choices, self._timings.told(answers.times)))

    async def _events(self, answers: Answers, reply: Reply) -> AsyncGenerator[bytes]:
        """The events of a streamed answer."""
        usages: dict[int, Usage] = {}
        async with aclosing(answers.pieces()) as pieces:
            for choice in sorted(answers.open):
                if opening := reply.opening(choice):
                    yield event(opening)
            async for piece in pieces:
                for chunk in reply.chunks(piece):
                    yield event(chunk)
                if piece.usage:
                    usages[piece.choice] = piece.usage
        if reply.usage_asked:
            counts = [usages[choice] for choice in sorted(usages)]
            yield event(reply.usage_chunk(counts, self._timings.told(answers.times)))


async def _gather(answers: Answers, request: Request) -> list[list[Piece]] | None:
    """The pieces of each choice; None if the client has left, which ends the answers as well."""
    choices: list[list[Piece]] = [[] for _ in answers.open]

    async def gather() -> None:
        async with aclosing(answers.pieces()) as pieces:
            async for piece in pieces:
                choices[piece.choice].append(piece)

    gathering, leaving = asyncio.create_task(gather()), asyncio.create_task(until_disconnected(request.receive))
    try:
        await asyncio.wait((gathering, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not gathering.done():
            gathering.cancel()
    with suppress(asyncio.CancelledError):
        await gathering
    return None if gathering.cancelled() else choices


def _client(body: ChatRequest | CompletionRequest, request: Request) -> str:
    """Whom a request counts for where clients take turns: a user of a key, or if it names none the key, or address."""
    key, user = request.scope.get(CALLER), body.client_user
    if key is not None:
        client = f"{key}/{user}" if user else str(key)
    else:
        client = user or (request.client.host if request.client else "")
    return client[:_LONGEST_CLIENT]


def _sampling(body: ChatRequest | CompletionRequest, seed: int) -> Sampling:
    """A field that is null has its default."""
    default = Sampling()
    given = {
        name: value
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        if (value := getattr(body, name)) is not None
    }
    return replace(
        default,
        **given,
        top_k=max(body.top_k or 0, 0),
        logit_bias=body.logit_bias or {},
        logprobs=body.wanted_logprobs,
        seed=seed,
    )
