"""A head without a model, at the very edge: it answers what a test tells it to, on a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx

from agent.server import Server
from pipeline import sampling_checks
from pipeline.head import HeadSnapshot
from pipeline.messages import Finished, FinishReason, Request, RequestEvent, Token, TokenEvent, Usage
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig
from pipeline.tokenizer import Tokenizer
from shards.manifest import Manifest

Script = Callable[[Request], Iterator[RequestEvent | float]]
"""Events of a request; a number is a pause in seconds."""


class FakeHead:
    """Plays scripts, and remembers what it was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.cancelled: list[str] = []
        self.failure: Exception | None = None
        self._ended: set[str] = set()
        self._lock = threading.Lock()

    def submit(self, request: Request, listener: Callable[[RequestEvent], None]) -> None:
        if self.failure is not None:
            raise self.failure
        sampling_checks.validate(request.sampling, 49152)
        self.requests.append(request)
        threading.Thread(target=self._play, args=(request, listener), daemon=True).start()

    def cancel(self, request: str) -> None:
        self.cancelled.append(request)

    def snapshot(self) -> HeadSnapshot:
        scheduler = Scheduler(SchedulerConfig(kv_tokens=64, block=32, context_length=64)).snapshot()
        return HeadSnapshot(scheduler, (), 0.0, 0.0, 0.0, 0.0, 0, self.failure and str(self.failure))

    def _play(self, request: Request, listener: Callable[[RequestEvent], None]) -> None:
        count = 0
        for event in self.script(request):
            if isinstance(event, float):
                until = time.monotonic() + event
                while time.monotonic() < until and request.id not in self.cancelled:
                    time.sleep(0.002)
            if request.id in self.cancelled:
                listener(Finished(request.id, "cancelled", Usage(len(request.prompt), 0, count)))
                return
            if not isinstance(event, float):
                count += isinstance(event, TokenEvent)
                listener(event)


@dataclass
class Api:
    """A running server with a fake head."""

    http: httpx.Client
    head: FakeHead
    tokenizer: Tokenizer
    manifest: Manifest
    server: Server

    def chat(self, content: str = "Hello", **fields: object) -> httpx.Response:
        messages = [{"role": "user", "content": content}]
        return self.http.post("/v1/chat/completions", json={"messages": messages, **fields})

    def complete(self, prompt: object = "Hello", **fields: object) -> httpx.Response:
        return self.http.post("/v1/completions", json={"prompt": prompt, **fields})


StartApi = Callable[..., Api]


def saying(tokenizer: Tokenizer, text: str, *, pause: float = 0.0) -> Script:
    """A script that says a text, token by token."""
    ids = tokenizer.encode(text, special=False)

    def script(request: Request) -> Iterator[RequestEvent | float]:
        for count, token in enumerate(ids[: request.max_tokens]):
            yield pause
            yield TokenEvent(request.id, token_at(request, count, token))
        said = min(len(ids), request.max_tokens)
        reason: FinishReason = "length" if said < len(ids) else "stop"
        yield Finished(request.id, reason, Usage(len(request.prompt), 0, said))

    return script


def token_at(request: Request, count: int, token: int) -> Token:
    """The answer's token at a place, with the log probabilities that were asked for."""
    position, wanted = len(request.prompt) + count, request.sampling.logprobs
    if wanted is None:
        return Token(0, position, token)
    return Token(0, position, token, -0.5, tuple((token + i, -0.5 - i) for i in range(wanted)))
