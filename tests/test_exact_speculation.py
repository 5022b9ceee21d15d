"""The promise of speculation: whatever is guessed, sampled and in flight, the tokens are those of a run without it.

Real model, real processes, real sockets; what is guessed is planted, so that any part of it is right and wrong.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from agent.bench.delays import Delays
from agent.bench.prompts import chat_prompts
from pipeline.chain import Chain
from pipeline.chain_times import ChainTimes
from pipeline.layout import lay_out
from pipeline.messages import Failed, Finished, Request, RequestEvent, Sampling, TokenEvent
from pipeline.running import Copy, RunOptions
from pipeline.speculation.drafter import MAX_GUESSES, MODEL, DrafterFacts, DraftText, Want
from pipeline.tokenizer import Tokenizer
from shards import manifest

pytestmark = pytest.mark.slow

TOKENS = 32
SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(temperature=0.7, seed=11),
    Sampling(temperature=1.2, seed=12, top_p=0.95),
    Sampling(temperature=0.7, seed=13, repetition_penalty=1.2, frequency_penalty=0.3, logprobs=2),
)
WAYS = (
    *((k, is_asynchronous) for k in (1, 2, 5, 10) for is_asynchronous in (False, True)),
    (None, False),
    (None, True),
)
"""Guesses a step (None: as many as pay), and whether they go behind others that are not confirmed."""
SOME_WAYS = ((3, False), (10, True), (None, True))
LLAMACPP = ((2, "llamacpp", SOME_WAYS),) if find_spec("llama_cpp") else ()
CASES = (
    (2, "openvino-paged", SOME_WAYS[1:2]),
    (3, "openvino-paged", SOME_WAYS[2:]),
    (2, "openvino-stateful", SOME_WAYS[2:]),
)
"""Stages, engine, and ways that are run without --exhaustive: llama.cpp, with a tiny model, has them all."""


class Planted:
    """Knows every answer, and guesses each token right with a chance that changes from text to text; now and then it
    is late. If guesses take time (`cost_ms` each), their rows need not wait for them."""

    def __init__(self, late: bool, cost_ms: float = 0.0) -> None:
        self._late, self._cost_ms = late, cost_ms
        self.answers: dict[tuple[int, ...], tuple[int, ...]] = {}
        """To each prompt that is being answered."""
        self._pick = random.Random(5)
        self._waiting: set[str] = set()
        self.on_ready: Callable[[], None] = lambda: None
        self.wrong = 0

    def guess(self, text: DraftText, count: int, want: Want = "all", piece: int = 1) -> list[int] | None:
        assert 1 <= count <= MAX_GUESSES
        if want == "free" and self._cost_ms:
            return []
        if self._late and text.key not in self._waiting and self._pick.random() < 0.3:
            self._waiting.add(text.key)
            threading.Timer(0.002, self.on_ready).start()
            return None
        self._waiting.discard(text.key)
        prompt, answer = next(
            (prompt, answer) for prompt, answer in self.answers.items() if tuple(text.tokens[: len(prompt)]) == prompt
        )
        chance = (0.0, 0.6, 0.9, 1.0)[len(prompt) % 4]
        start = len(text.tokens) + len(text.guesses) - len(prompt)
        guesses = [t if self._pick.random() < chance else (t + 1) % 256 for t in answer[start : start + count]]
        self.wrong += guesses != list(answer[start : start + count])
        return guesses

    def end(self, key: str, client: str, tokens: Sequence[int]) -> None:
        self._waiting.discard(key)

    def kind(self, key: str) -> str:
        return MODEL

    def cost_ms(self, count: int) -> float:
        return count * self._cost_ms

    @property
    def facts(self) -> DrafterFacts:
        return DrafterFacts("planted")

    def close(self) -> None:
        pass


class Answer:
    """What one request got."""

    def __init__(self) -> None:
        self.events: list[RequestEvent] = []
        self.ended = threading.Event()

    def hear(self, event: RequestEvent) -> None:
        self.events.append(event)
        if isinstance(event, Finished | Failed):
            self.ended.set()

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(event.token.token for event in self.events if isinstance(event, TokenEvent))

    @property
    def logprobs(self) -> list[float]:
        return [event.token.logprob or 0.0 for event in self.events if isinstance(event, TokenEvent)]

    @property
    def told(self) -> list[object]:
        """All that a client can see of it besides how long it took."""
        return [
            (event.token.position, event.token.token, [token for token, _ in event.token.top])
            if isinstance(event, TokenEvent)
            else (type(event), getattr(event, "reason", None), event.usage)
            for event in self.events
        ]


def ask(copy: Copy, prompts: Sequence[tuple[int, ...]], sampling: Sampling, stops: frozenset[int]) -> list[Answer]:
    answers = [Answer() for _ in prompts]
    for n, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        copy.head.submit(Request(f"r{n}", prompt, sampling, TOKENS - n, stops), answer.hear)
    for answer in answers:
        assert answer.ended.wait(300)
    return answers


@contextmanager
def opened(package: Path, stages: int, drafter: Planted | None, hop_ms: float = 0.0, **more: object) -> Iterator[Copy]:
    """A running copy; with `hop_ms` the stages are so far from one another, and the head is beside the first."""
    options = RunOptions(stages=stages, mode="exact", threads=1, prefix_cache=False, max_sequences=8, **more)  # type: ignore[arg-type]
    facts = manifest.read(package).facts
    layout = lay_out(package, manifest.read(package), options, package, lambda *_: None)
    with ExitStack() as stack:
        delays = Delays(hop_ms / 1e3, local_head=True)
        stack.callback(delays.close)
        chain = Chain.start(
            layout.stages,
            max_rows=options.token_budget,
            max_sequences=options.max_sequences,
            start_stage=delays.start_stage,
            locate=delays.locate_first,
        )
        times = ChainTimes(link_ms=stages * hop_ms, detour_ms=0.0 if hop_ms else None)
        copy = Copy.start(chain, facts.context_length, options, times, drafter)
        stack.callback(copy.close)
        yield copy


@dataclass(frozen=True, slots=True)
class Promise:
    """What a model says without speculation, in one stage."""

    package: Path
    prompts: list[tuple[int, ...]]
    """Of every length modulo four."""
    known: list[tuple[Sampling, frozenset[int], list[Answer]]]
    """Some runs have a stop token that most answers come to."""


def promise_of(package: Path, engine: str) -> Promise:
    found = chat_prompts(Tokenizer.load(package), manifest.read(package).facts, 6)
    promise = Promise(package, [prompt + prompt[: (n + 1 - len(prompt)) % 4] for n, prompt in enumerate(found)], [])
    with opened(package, 1, None, engine=engine) as copy:
        for n, sampling in enumerate(SAMPLINGS):
            answers = ask(copy, promise.prompts, sampling, frozenset())
            promise.known.append((sampling, frozenset(), answers))
            if n % 2:
                stops = frozenset(answer.tokens[11] for answer in answers[:4])
                promise.known.append((sampling, stops, ask(copy, promise.prompts, sampling, stops)))
    return promise


@pytest.fixture(scope="module")
def openvino(smollm2_package: Path) -> Promise:
    return promise_of(smollm2_package, "openvino-paged")


@pytest.fixture(scope="module")
def llamacpp(tiny_f32_package: Path) -> Promise:
    return promise_of(tiny_f32_package, "llamacpp")


def check(copy: Copy, drafter: Planted, promise: Promise, runs: slice, counts: Sequence[int]) -> None:
    """Ask for answers that are known, so many at once."""
    for sampling, stops, expected in promise.known[runs]:
        drafter.answers = dict(zip(promise.prompts, (answer.tokens for answer in expected), strict=True))
        for count in counts:
            for got, wanted in zip(ask(copy, promise.prompts[:count], sampling, stops), expected, strict=False):
                assert got.told == wanted.told
                assert got.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("stages", "engine", "ways"), [*CASES, *LLAMACPP])
def test_speculation_changes_no_token(
    stages: int, engine: str, ways: Sequence[tuple[int | None, bool]], request: pytest.FixtureRequest
) -> None:
    promise: Promise = request.getfixturevalue("llamacpp" if engine == "llamacpp" else "openvino")
    is_batched = engine != "openvino-stateful"
    if request.config.getoption("exhaustive"):
        ways = WAYS
    for draft_tokens, asynchronous in ways:
        drafter = Planted(late=asynchronous)
        more = {"draft_tokens": draft_tokens, "asynchronous": asynchronous, "engine": engine}
        with opened(promise.package, stages, drafter, **more) as copy:
            if is_batched:
                check(copy, drafter, promise, slice(None), (1, 6))
            else:
                check(copy, drafter, promise, slice(2), (1, 3))
            shot = copy.head.snapshot().scheduler
        assert (shot.kv_used, shot.running) == (0, 0)
        assert drafter.wrong


@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["openvino-paged", *(engine for _, engine, _ in LLAMACPP)])
def test_guesses_that_follow_their_row_change_no_token(engine: str, request: pytest.FixtureRequest) -> None:
    """Over links of 10 ms, and guesses of 2 ms: rows leave without them, and they follow one or two at a time."""
    promise: Promise = request.getfixturevalue("llamacpp" if engine == "llamacpp" else "openvino")
    drafter = Planted(late=True, cost_ms=2.0)
    with opened(promise.package, 2, drafter, hop_ms=10.0, engine=engine) as copy:
        for run in (1, len(promise.known) - 1):
            check(copy, drafter, promise, slice(run, run + 1), (1, 6))
        shot = copy.head.snapshot().scheduler
    assert 0 < shot.right_guesses < shot.sent_guesses
