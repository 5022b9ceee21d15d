"""A head without a model, at the very edge: it answers what a test tells it to, on a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import httpx

from agent.server import Server
from pipeline import sampling_checks
from pipeline.averages import LastSteps, StepLog
from pipeline.messages import Finished, FinishReason, Request, RequestEvent, Token, TokenEvent, Usage
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig
from pipeline.snapshots import HeadSnapshot, RequestSnapshot, StepSnapshot
from pipeline.tokenizer import Tokenizer
from shards.manifest import Manifest
from shards.runtime import RuntimeFacts

Script = Callable[[Request], Iterator[RequestEvent | float]]
"""Events of a request; a number is a pause in seconds."""


CHAIN, RECEIVED = 7, 12345
"""Number of the chain, and bytes that have come from its tail."""


HIDDEN_SIZE = 16


def fake_chain(hosts: tuple[str, ...]) -> SimpleNamespace:
    """What the API looks at of a chain: stages of a layer each."""
    facts = [
        RuntimeFacts(
            engine="openvino-paged",
            device="CPU",
            first_layer=i,
            end_layer=i + 1,
            depth=len(hosts),
            hidden_size=HIDDEN_SIZE,
            vocabulary=49152,
            block=32,
            kv_tokens=64,
            properties={},
        )
        for i in range(len(hosts))
    ]
    return SimpleNamespace(
        facts=tuple(facts),
        stages=tuple(SimpleNamespace(host=host, pid=None) for host in hosts),
        limits=SimpleNamespace(epoch=CHAIN, hidden_size=HIDDEN_SIZE),
        hidden="f16",
    )


class FakeHead:
    """Plays scripts, and remembers what it was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.cancelled: list[str] = []
        self.failure: Exception | None = None
        self.log = StepLog(CHAIN)
        self.seen: tuple[RequestSnapshot, ...] = ()
        self.on_their_way: tuple[StepSnapshot, ...] = ()
        self.rows = 0

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
        failure = self.failure and str(self.failure)
        return HeadSnapshot(
            replace(scheduler, rows=self.rows), self.seen, self.on_their_way, self.last, RECEIVED, 0, failure
        )

    @property
    def last(self) -> LastSteps:
        return self.log.last(time.perf_counter())

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
            if isinstance(event, Finished):
                event = replace(event, steps=self.last)
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
