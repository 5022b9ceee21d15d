"""The HTTP API of a head, over a scene; and what a test or a benchmark tells the scene."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from itertools import count, islice
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from agent.api import errors
from agent.api.errors import ApiError
from agent.api.guard import Guard
from agent.api.sse import EventStream, event
from agent.bench.screen.marked_text import MARK, pieces
from agent.bench.screen.scene import MODEL, Answering, Scene
from shards.errors import RequestError, StageError

_CHARACTERS_A_TOKEN = 4.2
_FIRST_TOKEN_SECONDS = 0.15


class Play(BaseModel):
    """What comes next; what is not given stays as it is."""

    model_config = ConfigDict(extra="forbid")

    rate: float | None = None
    """Tokens a second of each answer."""
    tokens: int | None = None
    """Of each answer."""
    text: str | None = None
    """What the next answers say, instead of the text with marks."""
    fail_after: int | None = None
    """The next answer ends in an error after so many tokens."""
    lose: str | None = None
    """This node leaves."""
    knock: str | None = None
    """A node with this code asks to be let in."""
    name: str | None = None
    """What that node calls itself."""
    say: str | None = None
    """This happened."""


class Code(BaseModel):
    """Body of approve and refuse."""

    code: str


class NodeName(BaseModel):
    """Body of forget."""

    node: str


class RequestId(BaseModel):
    """Body of cancel."""

    request: str


class Changes(BaseModel):
    """Body of apply, and the query of plan."""

    users: int | None = None
    context: int | None = None
    stages: int | None = None
    replicas: bool | None = None


class Prompt(BaseModel):
    """Body of a chat, or of tokenize: what of it counts here."""

    messages: list[dict[str, Any]] = []
    prompt: str = ""
    stream: bool = False
    stream_options: dict[str, bool] = {}
    max_tokens: int | None = None
    max_completion_tokens: int | None = None

    @property
    def tokens(self) -> int:
        """About how many they come to."""
        characters = len(self.prompt) + sum(len(message.get("content") or "") for message in self.messages)
        return int(characters / _CHARACTERS_A_TOKEN) + 8 * len(self.messages)


class SyntheticApi:
    """Speaks for a scene.

    Args:
        scene: The fleet.
        rate: Tokens a second of each answer.
        key: The API key that it wants.
    """

    def __init__(self, scene: Scene, rate: float = 100.0, key: str | None = None) -> None:
        self._scene = scene
        self._play = Play(rate=rate, tokens=1000)
        self._began = time.perf_counter()
        self._numbers = count()
        self._marks: dict[str, float] = {}
        """When each mark was sent: the clock is the same for all processes of a machine."""
        self.app = FastAPI(docs_url=None, redoc_url=None, redirect_slashes=False)
        for path, answer in (
            ("/v1/models", self.models),
            ("/healthz", self.health),
            ("/fleet", self.fleet),
            ("/fleet/nodes/{name:path}", self.node),
            ("/synthetic/marks", self.marks),
        ):
            self.app.get(path, response_model=None)(answer)
        for path, change in (
            ("/v1/chat/completions", self.chat),
            ("/tokenize", self.tokenize),
            ("/fleet/approve", self.approve),
            ("/fleet/refuse", self.refuse),
            ("/fleet/forget", self.forget),
            ("/fleet/cancel", self.cancel),
            ("/fleet/apply", self.apply),
            ("/synthetic/play", self.play),
        ):
            self.app.post(path, response_model=None)(change)
        self.app.get("/fleet/plan", response_model=None)(self.plan)
        errors.install(self.app)
        self.app.add_middleware(Guard, key=key)

    def end_answers(self) -> None:
        """Let no answer go on."""
        for answer in self._scene.answers.values():
            answer.failure = StageError("the server is shutting down")

    # What a head answers

    async def models(self) -> dict[str, Any]:
        """The only model."""
        listed = {"id": MODEL.name, "object": "model", "owned_by": "synthetic", "max_model_len": MODEL.context_length}
        return {"object": "list", "data": [listed]}

    async def health(self) -> dict[str, str]:
        """It is well."""
        return {"status": "ok"}

    async def fleet(self) -> Response:
        """Everything."""
        return JSONResponse(self._scene.fleet(self._now).model_dump(mode="json"))

    async def node(self, name: str) -> Response:
        """A node in detail."""
        return JSONResponse(self._scene.detail(name, self._now).model_dump(mode="json"))

    async def plan(self, request: Request) -> Response:
        """A preview."""
        changes = Changes.model_validate(dict(request.query_params)).model_dump(exclude_none=True)
        return JSONResponse(self._scene.plan(changes).model_dump(mode="json"))

    async def apply(self, body: Changes) -> dict[str, Any]:
        """Take up a plan."""
        return {"wish": self._scene.apply(body.model_dump(exclude_none=True), self._now).model_dump()}

    async def approve(self, body: Code) -> dict[str, str]:
        """Let a node in."""
        return {"node": self._scene.approve(body.code, self._now)}

    async def refuse(self, body: Code) -> dict[str, str]:
        """Do not."""
        return {"node": self._scene.refuse(body.code)}

    async def forget(self, body: NodeName) -> dict[str, str]:
        """Shut a node out."""
        return {"node": self._scene.lose(body.node, self._now, why="it was shut out")}

    async def cancel(self, body: RequestId) -> dict[str, str]:
        """End an answer."""
        try:
            self._scene.cancel(body.request, self._now)
        except RequestError as error:
            raise ApiError(404, str(error), param="request", code="no_request") from None
        return {"request": body.request}

    async def tokenize(self, body: Prompt) -> dict[str, Any]:
        """Count tokens, roughly."""
        return {"count": body.tokens, "max_model_len": MODEL.context_length, "tokens": []}

    async def chat(self, body: Prompt, request: Request) -> Response:
        """Answer, with what was told to be played; a stream only, which is all that the screen asks for."""
        limit = body.max_completion_tokens or body.max_tokens or MODEL.context_length
        client = request.client.host if request.client else ""
        answer = Answering(f"chatcmpl-{secrets.token_hex(8)}", client, body.tokens, limit, self._now)
        return EventStream(self._events(answer, body))

    # What a test tells

    async def play(self, body: Play) -> dict[str, Any]:
        """What comes next."""
        now = self._now
        if body.lose:
            self._scene.lose(body.lose, now)
        if body.knock:
            self._scene.knock(body.knock, body.name)
        if body.say:
            self._scene.tell(now, body.say)
        kept = body.model_dump(include={"rate", "tokens", "text", "fail_after"}, exclude_unset=True)
        self._play = self._play.model_copy(update=kept)
        return {}

    async def marks(self) -> dict[str, float]:
        """When each mark was sent, in seconds of the machine's performance counter."""
        return self._marks

    @property
    def _now(self) -> float:
        return time.perf_counter() - self._began

    async def _events(self, answer: Answering, body: Prompt) -> AsyncGenerator[bytes]:
        limit = answer.max_tokens
        scene, play = self._scene, self._play
        if play.fail_after is not None:
            self._play = play.model_copy(update={"fail_after": None})
        words = pieces(self._numbers) if play.text is None else iter(play.text.split(" "))
        gap = "" if play.text is None else " "
        scene.answers[answer.id] = answer
        try:
            yield self._chunk(answer, {"role": "assistant", "content": ""})
            begin = time.perf_counter() + _FIRST_TOKEN_SECONDS
            for number, piece in enumerate(islice(words, min(limit, play.tokens or limit))):
                await asyncio.sleep(max(begin + number / (play.rate or 1) - time.perf_counter(), 0))
                if number == play.fail_after:
                    answer.failure = StageError("the stage process has ended with code -9", where="pc-2")
                if answer.failure is not None:
                    raise answer.failure
                for mark in MARK.findall(piece):
                    self._marks[mark] = time.perf_counter()
                scene.count(answer, self._now)
                yield self._chunk(answer, {"content": gap + piece if number else piece})
            yield self._chunk(answer, {}, "length" if answer.sent == limit else "stop")
        finally:
            del scene.answers[answer.id]
        if body.stream_options.get("include_usage"):
            yield self._usage(answer, begin)

    def _chunk(self, answer: Answering, delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event(self._envelope(answer) | {"choices": [choice], "usage": None})

    def _usage(self, answer: Answering, begin: float) -> bytes:
        stages = self._scene.fleet(self._now).chains[0].stages
        seconds = time.perf_counter() - begin
        names = self._scene.fleet(self._now).names
        usage = {
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.sent,
            "total_tokens": answer.prompt_tokens + answer.sent,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        timings = {
            "first_token_ms": _FIRST_TOKEN_SECONDS * 1000,
            "tokens_per_second": round((answer.sent - 1) / seconds, 2) if answer.sent > 1 else None,
            "stages": [{"node": names[stage.node], "compute": 2.6, "wait": 0.9} for stage in stages],
            "wire": 0.35 * len(stages),
            "head": 0.21,
            "acceptance": None,
        }
        return event(self._envelope(answer) | {"choices": [], "usage": usage, "timings": timings})

    def _envelope(self, answer: Answering) -> dict[str, Any]:
        return {"id": answer.id, "object": "chat.completion.chunk", "created": int(time.time()), "model": MODEL.name}
