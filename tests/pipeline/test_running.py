from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import psutil
import pytest

from pipeline import layout
from pipeline.layout import lay_out
from pipeline.messages import Finished, Request, RequestEvent, Sampling, TokenEvent
from pipeline.running import RunningModel, RunOptions
from shards import manifest as manifests
from shards.edges import layer_words
from shards.errors import ConfigurationError, PackageError
from shards.profile import CostProfile
from shards.progress import silent
from shards.runtime import StageConfig

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a lighthouse by the sea, there lived a robot who " * 8,
)
NEW = 32


def whole_model(package: Path, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Greedy answers of the package's IR as OpenVINO runs it, unsplit and stateful, in exact numbers."""
    import openvino as ov

    exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    core = ov.Core()
    model = core.read_model(package / manifests.GRAPH, package / manifests.WEIGHTS)
    request = core.compile_model(model, "CPU", exact).create_infer_request()
    answers = []
    for prompt in prompts:
        request.reset_state()
        tokens, past = list(prompt), 0
        for _ in range(count):
            request.infer(
                {
                    "input_ids": np.array([tokens[past:]], np.int64),
                    "attention_mask": np.ones((1, len(tokens)), np.int64),
                    "position_ids": np.arange(past, len(tokens))[None],
                    "beam_idx": np.zeros(1, np.int32),
                }
            )
            past = len(tokens)
            tokens.append(int(request.get_tensor("logits").data[0, -1].argmax()))
        answers.append(tokens[len(prompt) :])
    return answers


def test_two_processes_say_what_the_unsplit_model_says(smollm2_package: Path) -> None:
    options = RunOptions(stages=2, mode="exact", token_budget=40, kv_tokens=2048)
    with RunningModel.open(smollm2_package, options) as model:
        prompts = [model.tokenizer.encode(text) for text in PROMPTS]
        events: SimpleQueue[RequestEvent] = SimpleQueue()
        for i, prompt in enumerate(prompts):  # side by side, the long ones in chunks
            model.head.submit(Request(str(i), tuple(prompt), Sampling(temperature=0.0), NEW), events.put)
        said: dict[str, list[int]] = {str(i): [] for i in range(len(prompts))}
        ended = 0
        while ended < len(prompts):
            match events.get(timeout=120):
                case TokenEvent(request=request, token=token):
                    said[request].append(token.token)
                case event:
                    assert isinstance(event, Finished)
                    ended += 1
        pids = [stage.pid for stage in model.chain.stages]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert list(said.values()) == whole_model(smollm2_package, prompts, NEW)


def edges(package: Path, **options: Any) -> list[tuple[int, int]]:
    return [(stage.first_layer, stage.end_layer) for stage in stages(package, **options)]


def stages(package: Path, **options: Any) -> tuple[StageConfig, ...]:
    """Laid out without measuring."""
    options = {"tune": False, **options}
    return lay_out(package, manifests.read(package), RunOptions(**options), Path(), silent).stages


def test_layers_are_dealt_as_asked(smollm2_package: Path) -> None:
    assert edges(smollm2_package) == [(0, 30)]
    assert edges(smollm2_package, split=(1, 28, 1)) == [(0, 1), (1, 29), (29, 30)]
    dealt = edges(smollm2_package, stages=3)
    assert [first for first, _ in dealt] == [0, *(end for _, end in dealt[:-1])]
    assert dealt[-1][1] == 30


def test_a_measured_deal_may_divide_a_layer(smollm2_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs: dict[str, tuple[float, ...]] = {"fixed": (0.0,), "embed": (0.0,), "layer": (4.0,), "head": (12.5,)}
    like: dict[str, Any] = {"device": "CPU", "engine": "openvino-paged", "mode": "fast", "rows": (1,)}
    monkeypatch.setattr(layout, "cost_profile", lambda *_: CostProfile(**like, **costs, attention=(1.0,)))

    def dealt(**options: Any) -> list[str]:
        return [layer_words(stage) for stage in stages(smollm2_package, tune=True, **options)]

    assert dealt(stages=2) == ["0-16½", "16½-29"]  # 65 and 67.5, instead of 68 and 64.5
    assert dealt(split=(17, 13)) == ["0-16", "17-29"]
    assert dealt(stages=2, mode="exact") == [layer_words(stage) for stage in stages(smollm2_package, stages=2)]
    monkeypatch.setattr(layout, "cost_profile", lambda *_: CostProfile(**like, **costs))
    assert dealt(stages=2) == ["0-16", "17-29"]


def test_processors_are_dealt_too(smollm2_package: Path) -> None:
    cores = psutil.cpu_count(logical=False) or 1
    one, two = ({config.threads for config in stages(smollm2_package, stages=count)} for count in (1, 2))
    assert one == {None}
    assert two == {max(1, cores // 2)}
    pinned = stages(smollm2_package, stages=2, cores=((0,), (1,)))
    assert [(config.cores, config.threads) for config in pinned] == [((0,), None), ((1,), None)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"split": (10, 10)}, "10, 10 layers make 20, the model has 30"),
        ({"split": (31, -1)}, "31, -1"),
        ({"stages": 31}, "31"),
        ({"stages": 2, "cores": ((0,),)}, "1 sets of cores for 2 stages"),
    ],
)
def test_what_does_not_suit_the_model_is_refused(smollm2_package: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        edges(smollm2_package, **options)


def test_a_package_without_a_tokenizer_starts_nothing(tiny_package: Path) -> None:
    before = psutil.Process().children()
    with pytest.raises(PackageError, match="tokenizer"):
        RunningModel.open(tiny_package, RunOptions(stages=2))
    assert psutil.Process().children() == before
