from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from unsplit import Whole

from agent.bench.load import run_load
from pipeline import layout
from pipeline.layout import lay_out
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


def test_two_processes_say_what_the_unsplit_model_says(smollm2_package: Path) -> None:
    options = RunOptions(stages=2, mode="exact", token_budget=40, kv_tokens=2048)
    with RunningModel.open(smollm2_package, options) as model:
        prompts = [tuple(model.tokenizer.encode(text)) for text in PROMPTS]
        said = run_load([model.head], prompts, NEW).tokens  # side by side, the long ones in chunks
        pids = [stage.pid for stage in model.chain.stages]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    whole = Whole(smollm2_package)
    assert [list(answer) for answer in said] == [whole.generate(prompt, NEW) for prompt in prompts]


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
    assert set(psutil.Process().children()) <= set(before)
