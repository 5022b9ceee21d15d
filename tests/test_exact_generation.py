"""The promise of exact mode: however a model is split, whichever engine runs it and whoever shares the step, the tokens
are those of the unsplit graph. Real model, real processes, real sockets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import pytest
from sharing import cache_folder, one_at_a_time

from agent.bench.load import run_load
from agent.bench.prompts import QUESTIONS, chat_prompts
from agent.bench.rival import Rival
from pipeline.running import RunningModel, RunOptions
from pipeline.tokenizer import Tokenizer
from shards import manifest
from shards.runtime import EngineName

pytestmark = pytest.mark.slow

NEW_TOKENS = 128
TOGETHER = 8
LENGTHS = (1, 2, 7, 31, 32, 33, 64, 127, 256, 257, 900)
"""Around the KV block (32) and the step's budget (256), and up to several of them."""
WHOLE = 2
"""The number of stages that answers all prompts, the longest; with --exhaustive, in a quarter of an hour, all do."""
ALONE = (0, 6, 9)
"""Prompts that are also asked alone; all of them with --exhaustive."""
SOME = (0, 4, 5, 9, 13, 19)
"""Prompts for other numbers of stages: the edges, and chats."""
SOME_ALONE = (6,)
SOME_TOKENS = 40
"""Their tokens: each sequence goes on into another block."""
ALONE_TOKENS: dict[EngineName, int] = {"openvino-paged": SOME_TOKENS, "openvino-stateful": NEW_TOKENS}
TOGETHER_TOKENS: dict[EngineName, int] = {"openvino-paged": NEW_TOKENS, "openvino-stateful": SOME_TOKENS}
"""Each engine's longest answers are where it computes most at once: the stateful one does each sequence by itself."""
ENGINES = tuple(TOGETHER_TOKENS)
Answers = list[tuple[int, ...]]
Ask = Callable[[RunningModel, Sequence[tuple[int, ...]], int], Answers]
Runs = tuple[tuple[Ask, Sequence[int], dict[EngineName, int]], ...]
"""How to ask, which of the prompts, and for how many tokens of each engine."""
TEXT = " ".join(
    (
        *QUESTIONS,
        "def area(r):\n    return 3.14159 * r ** 2  # π r²\n\nprint([area(n / 10) for n in range(100)])\n",
        "Der Zug fährt um halb acht, also sollten wir um sieben dort sein. 春の海ひねもすのたりのたりかな 🌊🚲",
        "| item | price |\n| --- | ---: |\n| lentils, 500 g | 2.49 |\n| carrots, 1 kg | 1.19 |\n",
    )
)


@pytest.fixture(scope="module")
def prompts(smollm2_package: Path) -> list[tuple[int, ...]]:
    """Twenty prompts of 1 to 900 tokens: cuts of a mixed text, each from another place, and chats."""
    tokenizer = Tokenizer.load(smollm2_package)
    ids = tokenizer.encode(TEXT * 4, special=False)
    cuts = [tuple(ids[17 * n : 17 * n + length]) for n, length in enumerate(LENGTHS)]
    return cuts + chat_prompts(tokenizer, manifest.read(smollm2_package).facts, 20 - len(cuts))


@pytest.fixture(scope="module")
def unsplit_answers(smollm2_package: Path, prompts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """What the unsplit stateful graph says to each prompt, greedily, past any stop token; kept for the next run."""
    model = manifest.read(smollm2_package).package_id  # the same whatever code has made it of the same weights
    asked = json.dumps([model, version("openvino"), prompts, NEW_TOKENS])
    kept = cache_folder() / f"unsplit-{hashlib.sha256(asked.encode()).hexdigest()[:24]}.json"
    with one_at_a_time("unsplit"):
        if not kept.exists():
            with Rival("unsplit", smollm2_package) as rival:
                answers = rival.run(prompts, NEW_TOKENS)[1]
            kept.with_suffix(".partial").write_text(json.dumps(answers), "utf-8")
            kept.with_suffix(".partial").replace(kept)
    return [tuple(answer) for answer in json.loads(kept.read_text("utf-8"))]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_the_tokens_of_the_unsplit_graph(
    stages: int,
    smollm2_package: Path,
    prompts: list[tuple[int, ...]],
    unsplit_answers: list[tuple[int, ...]],
    request: pytest.FixtureRequest,
) -> None:
    assert (min(map(len, prompts)), max(map(len, prompts)), len(prompts)) == (1, 900, 20)
    with ExitStack() as stack:
        models = [
            stack.enter_context(RunningModel.open(smollm2_package, _options(stages, engine))) for engine in ENGINES
        ]
        everything = range(len(prompts))
        some, many = (dict.fromkeys(ENGINES, tokens) for tokens in (SOME_TOKENS, NEW_TOKENS))
        runs: Runs = ((_alone, SOME_ALONE, some), (_together, SOME, some))
        if request.config.getoption("exhaustive"):
            runs = ((_alone, everything, many), (_together, everything, many))
        elif stages == WHOLE:
            runs = ((_alone, ALONE, ALONE_TOKENS), (_together, everything, TOGETHER_TOKENS))
        for ask, numbers, tokens in runs:
            # the engines' chains know nothing of each other; side by side they fill both cores
            asked = [prompts[n] for n in numbers]
            with ThreadPoolExecutor() as pool:
                answers = list(pool.map(ask, models, [asked] * len(models), tokens.values()))
            for engine, got in zip(ENGINES, answers, strict=True):
                wanted = [unsplit_answers[n][: tokens[engine]] for n in numbers]
                wrong = [n for n, answer, right in zip(numbers, got, wanted, strict=True) if answer != right]
                assert not wrong, f"{engine}, {ask.__name__}: prompts {wrong} have other tokens"


def _alone(model: RunningModel, prompts: Sequence[tuple[int, ...]], tokens: int) -> Answers:
    """One request at a time."""
    return [run_load([model.head], [prompt], tokens).tokens[0] for prompt in prompts]


def _together(model: RunningModel, prompts: Sequence[tuple[int, ...]], tokens: int) -> Answers:
    """All at once: as many in a step as the chain takes, each beside seven others, coming and going."""
    return list(run_load([model.head], prompts, tokens).tokens)


def _options(stages: int, engine: EngineName) -> RunOptions:
    return RunOptions(
        stages=stages,
        engine=engine,
        mode="exact",
        threads=1,
        max_sequences=TOGETHER,
        kv_tokens=TOGETHER * (max(LENGTHS) + NEW_TOKENS + 32),
        prefix_cache=False,
    )
