"""A model running in llama.cpp stages: what is peculiar to them. What every engine must do is in test_engines_at_work,
test_preempted_generation and test_exact_speculation."""

from __future__ import annotations

from pathlib import Path

import pytest
from unsplit import WholeGguf

from agent.bench.load import run_load
from pipeline.layout import lay_out
from pipeline.running import RunningModel, RunOptions
from shards import manifest as manifests
from shards.edges import layer_words
from shards.errors import ConfigurationError, PackageError
from shards.progress import silent
from shards.runtime import Mode

NEW = 32
OPTIONS = RunOptions(
    stages=2, engine="llamacpp", mode="exact", threads=1, token_budget=40, kv_tokens=2048, max_sequences=8
)


def test_a_real_model_asked_alone_says_what_the_unsplit_one_says(
    smollm2_llamacpp_package: Path, tmp_path: Path
) -> None:
    options = OPTIONS.model_copy(update={"cache": tmp_path})
    with RunningModel.open(smollm2_llamacpp_package, options) as running:
        prompt = running.tokenizer.encode("The capital of France is")
        answer = list(run_load([running.head], [tuple(prompt)], NEW).tokens[0])
        assert "Paris" in running.tokenizer.decode(answer)
    assert answer == WholeGguf(smollm2_llamacpp_package).generate(prompt, NEW)


@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_stages_have_whole_layers_in_every_mode(mode: Mode, smollm2_llamacpp_package: Path, tmp_path: Path) -> None:
    manifest = manifests.read(smollm2_llamacpp_package)
    options = RunOptions(stages=3, engine="llamacpp", mode=mode)
    layout = lay_out(smollm2_llamacpp_package, manifest, options, tmp_path, silent)
    assert all(edge == int(edge) for stage in layout.stages for edge in (stage.first_layer, stage.end_layer))
    assert not any("½" in layer_words(stage) for stage in layout.stages)
    assert {stage.engine for stage in layout.stages} == {"llamacpp"}
    assert (layout.times.table is not None) is (mode == "fast")  # which is measured


def test_more_at_once_than_stages_hold_are_refused(smollm2_llamacpp_package: Path, tmp_path: Path) -> None:
    options = OPTIONS.model_copy(update={"max_sequences": 128, "token_budget": 128, "cache": tmp_path})
    with pytest.raises(ConfigurationError, match=r"128 sequences are to run at once, the stages hold 128.*at most 127"):
        RunningModel.open(smollm2_llamacpp_package, options).close()


def test_a_package_without_the_backend_starts_nothing(smollm2_package: Path) -> None:
    with pytest.raises(PackageError, match=r"no llama.cpp backend"):
        RunningModel.open(smollm2_package, OPTIONS)
