"""The promise of speculation: whatever is guessed, sampled and in flight, the tokens are those of a run without it.

Real model, real processes, real sockets; what is guessed is planted, so that any part of it is right and wrong.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from agent.bench.prompts import chat_prompts
from pipeline.chain import Chain
from pipeline.layout import lay_out
from pipeline.messages import Failed, Finished, Request, RequestEvent, Sampling, TokenEvent
from pipeline.running import Copy, RunOptions
from pipeline.speculation.drafter import MAX_GUESSES, DrafterFacts, DraftText
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


class Planted:
    """Knows every answer, and guesses each token right with a chance that changes from text to text; now and then it
    is late."""

    def __init__(self, late: bool) -> None:
        self._late = late
        self.answers: dict[tuple[int, ...], tuple[int, ...]] = {}
        """To each prompt that is being answered."""
        self._pick = random.Random(5)
        self._waiting: set[str] = set()
        self.on_ready: Callable[[], None] = lambda: None
        self.wrong = 0

    def guess(self, text: DraftText, count: int, is_free: bool = False) -> list[int] | None:
        assert 1 <= count <= MAX_GUESSES
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
        guesses = [t if self._pick.random() < chance else (t + 1) % 1000 for t in answer[start : start + count]]
        self.wrong += guesses != list(answer[start : start + count])
        return guesses

    def end(self, key: str, client: str, tokens: Sequence[int]) -> None:
        self._waiting.discard(key)

    def kind(self, key: str) -> str:
        return "planted"

    def cost_ms(self, count: int) -> float:
        return 0.0

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
        assert answer.ended.wait(120)
    return answers


def opened(package: Path, stages: int, drafter: Planted | None, **more: object) -> Copy:
    options = RunOptions(stages=stages, mode="exact", threads=1, prefix_cache=False, max_sequences=8, **more)  # type: ignore[arg-type]
    facts = manifest.read(package).facts
    layout = lay_out(package, manifest.read(package), options, package, lambda *_: None)
    chain = Chain.start(layout.stages, max_rows=options.token_budget, max_sequences=options.max_sequences)
    return Copy.start(chain, facts.context_length, options, None, drafter=drafter)


Known = list[tuple[Sampling, frozenset[int], list[Answer]]]


@pytest.fixture(scope="module")
def prompts(smollm2_package: Path) -> list[tuple[int, ...]]:
    found = chat_prompts(Tokenizer.load(smollm2_package), manifest.read(smollm2_package).facts, 6)
    return [prompt + tuple(prompt[:n]) for n, prompt in enumerate(found)]  # of every length modulo four


@pytest.fixture(scope="module")
def known(smollm2_package: Path, prompts: list[tuple[int, ...]]) -> Iterator[Known]:
    """The answers without speculation; some runs have a stop token that most answers come to."""
    copy = opened(smollm2_package, 1, None)
    found: Known = []
    for n, sampling in enumerate(SAMPLINGS):
        answers = ask(copy, prompts, sampling, frozenset())
        found.append((sampling, frozenset(), answers))
        if n % 2:
            stops = frozenset(answer.tokens[11] for answer in answers[:4])
            found.append((sampling, stops, ask(copy, prompts, sampling, stops)))
    copy.close()
    yield found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("stages", "engine"), [(2, "openvino-paged"), (3, "openvino-paged"), (2, "openvino-stateful")])
def test_speculation_changes_no_token(
    stages: int,
    engine: str,
    smollm2_package: Path,
    prompts: list[tuple[int, ...]],
    known: Known,
    request: pytest.FixtureRequest,
) -> None:
    is_batched = engine != "openvino-stateful"
    ways: Sequence[tuple[int | None, bool]] = SOME_WAYS if is_batched and stages == 2 else SOME_WAYS[-1:]
    if request.config.getoption("exhaustive"):
        ways = WAYS
    for draft_tokens, asynchronous in ways:
        drafter = Planted(late=asynchronous)
        more = {"draft_tokens": draft_tokens, "asynchronous": asynchronous, "engine": engine}
        copy = opened(smollm2_package, stages, drafter, **more)
        try:
            for sampling, stops, expected in known if is_batched else known[:2]:
                drafter.answers = dict(zip(prompts, (answer.tokens for answer in expected), strict=True))
                for count in (1, 6 if is_batched else 3):
                    for got, wanted in zip(ask(copy, prompts[:count], sampling, stops), expected, strict=False):
                        assert got.told == wanted.told
                        assert got.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
            shot = copy.head.snapshot().scheduler
        finally:
            copy.close()
        assert (shot.kv_used, shot.running) == (0, 0)
        assert drafter.wrong
