"""What the scheduler does with each engine's cache: real processes, and the tokens of the unsplit model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import psutil
import pytest
from unsplit import Whole, WholeGguf

from agent.bench.load import run_load
from pipeline.messages import Finished, Request, RequestEvent, Sampling, TokenEvent
from pipeline.running import RunningModel, RunOptions
from shards.runtime import EngineName

NEW = 32
GREEDY = Sampling(temperature=0.0)
ENGINES: tuple[EngineName, ...] = (
    "openvino-paged",
    "openvino-stateful",
    *(("llamacpp",) if find_spec("llama_cpp") else ()),
)
PROMPTS = [np.random.default_rng(n).integers(3, 270, length).tolist() for n, length in enumerate((5, 33, 70, 100))]


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> EngineName:
    name: EngineName = request.param
    return name


@pytest.fixture(scope="module")
def package(engine: EngineName, request: pytest.FixtureRequest) -> Path:
    package: Path = request.getfixturevalue("tiny_f32_package" if engine == "llamacpp" else "tiny_chat_package")
    return package


@pytest.fixture(scope="module")
def want(engine: EngineName, package: Path) -> list[list[int]]:
    whole = WholeGguf(package) if engine == "llamacpp" else Whole(package)
    return [whole.generate(prompt, NEW) for prompt in PROMPTS]


def options(engine: EngineName, stages: int) -> RunOptions:
    return RunOptions(
        stages=stages, engine=engine, mode="exact", threads=1, token_budget=40, kv_tokens=2048, max_sequences=8
    )


@pytest.fixture(scope="module")
def model(engine: EngineName, package: Path) -> Iterator[RunningModel]:
    with RunningModel.open(package, options(engine, 2)) as running:
        yield running


def ask(model: RunningModel, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Greedy answers to prompts that are asked side by side."""
    return [list(answer) for answer in run_load([model.head], [tuple(prompt) for prompt in prompts], NEW).tokens]


def test_three_processes_say_what_the_unsplit_model_says(
    engine: EngineName, package: Path, want: list[list[int]]
) -> None:
    with RunningModel.open(package, options(engine, 3)) as model:
        assert [facts.engine for facts in model.chain.facts] == [engine] * 3
        assert ask(model, PROMPTS) == want
        pids = [stage.pid for stage in model.chain.stages]
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_company_changes_no_token(model: RunningModel, want: list[list[int]]) -> None:
    assert ask(model, PROMPTS) == want  # the long ones in chunks
    assert [ask(model, [prompt])[0] for prompt in PROMPTS] == want


def test_a_prefix_is_forked_and_gives_the_same_answer(model: RunningModel, want: list[list[int]]) -> None:
    ask(model, PROMPTS[3:])
    cached = model.head.snapshot().scheduler.cached_tokens
    assert ask(model, [PROMPTS[3], [*PROMPTS[3][:64], *PROMPTS[0]]])[0] == want[3]
    assert model.head.snapshot().scheduler.cached_tokens - cached >= 96 + 64


def test_cancelling_frees_and_the_next_one_runs(model: RunningModel, want: list[list[int]]) -> None:
    events: SimpleQueue[RequestEvent] = SimpleQueue()

    def hear(event: RequestEvent) -> None:
        """On the head's thread: the answer goes no further before it is cancelled."""
        if isinstance(event, TokenEvent):
            model.head.cancel("long")
        events.put(event)

    model.head.submit(Request("long", tuple(PROMPTS[1]), GREEDY, 400), hear)
    assert isinstance(events.get(timeout=60), TokenEvent)
    while isinstance(event := events.get(timeout=60), TokenEvent):
        pass
    assert isinstance(event, Finished) and event.reason == "cancelled"
    assert ask(model, PROMPTS[:1]) == want[:1]
    assert model.head.snapshot().scheduler.kv_used == 0
