"""Chains of an OpenVINO and a llama.cpp stage, of which one is killed in the midst of answers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue

import psutil
import pytest
from tiny_gguf import write_tiny_gguf

from exporters.export import export
from pipeline.chain import Chain
from pipeline.chain_times import ChainTimes
from pipeline.messages import Failed, Request, RequestEvent, Sampling, TokenEvent
from pipeline.running import Copy, RunOptions
from shards.errors import StageError
from shards.runtime import EngineName, StageConfig

USERS, SECONDS = 4, 60.0
CHAINS: tuple[tuple[tuple[EngineName, EngineName], int], ...] = (
    (("openvino-paged", "llamacpp"), 1),
    (("llamacpp", "openvino-paged"), 0),
    (("llamacpp", "openvino-paged"), 1),
)
"""The engines, and which of the stages is killed."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of four layers for both engines. Read only."""
    folder = tmp_path_factory.mktemp("both")
    source = write_tiny_gguf(folder / "tiny.gguf", layers=4)
    return export(str(source), folder / "tiny", weights="keep", backend="both", verified=False).package


def start(package: Path, engines: tuple[EngineName, EngineName], cache: Path) -> Copy:
    configs = [
        StageConfig(
            package=package, first_layer=first, end_layer=end, engine=engine, mode="exact", threads=1, kv_tokens=2048
        )
        for engine, (first, end) in zip(engines, pairwise((0, 2, 4)), strict=True)
    ]
    chain = Chain.start(configs, max_rows=64, max_sequences=USERS, cache=cache)
    return Copy.start(chain, 2048, RunOptions(stages=2, token_budget=64, max_sequences=USERS), ChainTimes())


@pytest.mark.parametrize(("engines", "which"), CHAINS)
def test_every_answer_ends_in_the_same_clear_error(
    engines: tuple[EngineName, EngineName], which: int, both: Path, tmp_path: Path
) -> None:
    before = {child.pid for child in psutil.Process().children()}
    copy = start(both, engines, tmp_path)
    prompts = [tuple(range(3, 20 + n)) for n in range(USERS)]
    events: SimpleQueue[RequestEvent] = SimpleQueue()
    answering: set[str] = set()

    def hear(event: RequestEvent) -> None:
        """On the head's thread: once all are answered one stage is killed, and no answer goes further meanwhile."""
        events.put(event)
        if isinstance(event, TokenEvent) and len(answering) < USERS:
            answering.add(event.request)
            if len(answering) == USERS:
                psutil.Process(copy.chain.stages[which].pid).kill()

    for n, prompt in enumerate(prompts):
        copy.head.submit(Request(str(n), prompt, Sampling(temperature=0.0), 400), hear)
    ended: list[Failed] = []
    while len(ended) < USERS:
        event = events.get(timeout=SECONDS)
        if not isinstance(event, TokenEvent):
            assert isinstance(event, Failed)
            ended.append(event)
    assert len(answering) == USERS
    (text,) = {str(event.error) for event in ended}
    assert text.startswith(
        f"stage {which + 1} of 2 (layers {2 * which}-{2 * which + 1}): the process ended (exit code "
    )
    with pytest.raises(StageError):
        copy.head.submit(Request("late", prompts[0], Sampling(), 1), events.put)
    copy.close()
    assert {child.pid for child in psutil.Process().children()} <= before
