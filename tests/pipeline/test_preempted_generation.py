"""Answers that had to stop for others, and went on from what was still in the KV cache: real model, real processes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue

import pytest

from pipeline.head import Listener
from pipeline.messages import Failed, Finished, Request, RequestEvent, Sampling, TokenEvent
from pipeline.running import RunningModel, RunOptions
from pipeline.snapshots import SchedulerSnapshot
from shards.runtime import EngineName

NEW = 50
GREEDY = Sampling(temperature=0.0)
OPENING = "Once upon a time, in a lighthouse by the sea, there lived a robot who " * 5
PACKAGES: dict[EngineName, str] = {
    "openvino-paged": "smollm2_package",
    **({"llamacpp": "tiny_f32_package"} if find_spec("llama_cpp") else {}),
}


def answers(package: Path, engine: EngineName, kv_tokens: int) -> tuple[dict[str, list[int]], SchedulerSnapshot]:
    """Four batch requests, and in the midst of them two interactive ones that take the slots of two."""
    options = RunOptions(
        stages=2, engine=engine, mode="exact", kv_tokens=kv_tokens, max_sequences=4, token_budget=64, threads=1
    )
    with RunningModel.open(package, options) as model:
        events: SimpleQueue[RequestEvent] = SimpleQueue()
        opening = model.tokenizer.encode(OPENING)[:85]
        tokens: dict[str, list[int]] = {}
        left = 6
        interactive = [tuple(model.tokenizer.encode(f"The {i + 1}. capital of the world is")) for i in range(2)]
        come: list[TokenEvent] = []

        def hear(event: RequestEvent) -> None:
            """Hears batch 0 on the head's thread: its answer goes no further before the two have been asked."""
            events.put(event)
            if isinstance(event, TokenEvent):
                come.append(event)
                if len(come) == 10:
                    for i, prompt in enumerate(interactive):
                        model.head.submit(Request(f"interactive {i}", prompt, GREEDY, 10), events.put)

        for i in range(4):
            prompt = (*opening, *model.tokenizer.encode(f" number {i}"))
            listener: Listener = events.put if i else hear
            model.head.submit(Request(f"batch {i}", prompt, GREEDY, NEW, service="batch"), listener)
        while left:
            event = events.get(timeout=120)
            if isinstance(event, TokenEvent):
                tokens.setdefault(event.request, []).append(event.token.token)
            elif isinstance(event, Finished | Failed):
                assert isinstance(event, Finished) and event.reason == "length"
                left -= 1
        return tokens, model.head.snapshot().scheduler


@pytest.mark.parametrize("engine", PACKAGES)
def test_the_tokens_are_those_of_answers_that_never_had_to_stop(
    engine: EngineName, request: pytest.FixtureRequest
) -> None:
    package = request.getfixturevalue(PACKAGES[engine])
    (wide, _), (narrow, shot) = (answers(package, engine, kv_tokens) for kv_tokens in (8192, 384))
    assert narrow == wide
    assert shot.preemptions >= 2 and shot.evicted_tokens > 0
    assert (shot.kv_used, shot.running, shot.preempted) == (0, 0, 0)
