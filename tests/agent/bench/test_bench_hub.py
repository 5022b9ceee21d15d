from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from agent.bench.arrivals import ClosedLoop
from agent.bench.hub import Hub
from agent.bench.load import GREEDY, run_traffic
from agent.bench.prompts import mixed_prompts
from pipeline.layout import lay_out
from pipeline.messages import Request, RequestEvent
from pipeline.running import RunningModel, RunOptions
from shards import manifest as manifests
from shards.errors import StageError
from shards.progress import silent
from shards.runtime import StageConfig


def stages_of(package: Path, *edges: int) -> list[StageConfig]:
    return [
        StageConfig(package=package, first_layer=first, end_layer=end, mode="exact", threads=1, kv_tokens=1024)
        for first, end in pairwise(edges)
    ]


def test_the_hub_says_what_our_chain_says_in_exact_mode_and_leaves_no_process(
    tiny_both_package: Path, tmp_path: Path
) -> None:
    options = RunOptions(stages=2, mode="exact", threads=1)
    with RunningModel.open(tiny_both_package, options) as ours:
        prompts = mixed_prompts(ours.tokenizer, ours.manifest.facts, 4)
        expected = run_traffic(ours.head, ClosedLoop(2, 4), prompts, 12)
    layout = lay_out(tiny_both_package, manifests.read(tiny_both_package), options, tmp_path, silent)
    with Hub(layout.stages, tmp_path, streams=2) as hub:
        pids = hub.pids
        load = run_traffic(hub, ClosedLoop(2, 4), prompts, 12)
    assert load.tokens == expected.tokens
    assert len(pids) == 2 and not any(psutil.pid_exists(pid) for pid in pids)


def test_a_hub_frees_sequences_and_ends_what_is_cancelled(tiny_package: Path, tmp_path: Path) -> None:
    prompt = tuple(range(1, 9))
    with Hub(stages_of(tiny_package, 0, 2, 4), tmp_path, streams=1) as hub:
        # 100 answers of 8 + 24 tokens are three times what the KV cache of 1024 tokens holds
        load = run_traffic(hub, ClosedLoop(1, 100), [prompt], 24)
        assert len(set(load.tokens)) == 1
        events: list[RequestEvent] = []

        def hear(event: RequestEvent) -> None:
            events.append(event)
            hub.cancel("endless")

        hub.submit(Request("endless", prompt, GREEDY, 500), hear)
        after = run_traffic(hub, ClosedLoop(1, 1), [prompt], 24)  # the only stream comes to it after the other
        assert after.tokens[0] == load.tokens[0]
        assert [type(event).__name__ for event in events] == ["TokenEvent", "Finished"]


def test_a_stage_that_cannot_go_on_fails_its_requests(tiny_package: Path, tmp_path: Path) -> None:
    with (
        Hub(stages_of(tiny_package, 0, 2, 4), tmp_path, streams=1) as hub,
        pytest.raises(StageError, match=r"hub's stage 1: .*tokens"),
    ):
        run_traffic(hub, ClosedLoop(1, 1), [(1,) * 1025], 2)


def test_a_stage_that_cannot_load_is_named_and_no_process_is_left(tiny_package: Path, tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    stages = stages_of(tiny_package, 0, 2, 4)
    stages[1] = stages[1].model_copy(update={"package": tmp_path})
    with pytest.raises(StageError, match=r"hub's stage 2: .*manifest"):
        Hub(stages, tmp_path, streams=1)
    assert set(psutil.Process().children()) <= before
