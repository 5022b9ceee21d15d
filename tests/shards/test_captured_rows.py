"""A tail that captures: its logits stay what they were, and final norm and head make them of what it captures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from shards import manifest as manifests
from shards.graph import cut_head
from shards.loading import load_stage
from shards.runtime import Batch, EngineName, SequenceRows, StageConfig

ENGINES: tuple[EngineName, ...] = ("openvino-paged", "openvino-stateful")


def head_of(package: Path) -> ov.CompiledModel:
    """What follows the last layer, as a model of its own: hidden states [1, rows, hidden size] to logits."""
    model = ov.Core().read_model(package / manifests.GRAPH, package / manifests.WEIGHTS)
    return ov.Core().compile_model(cut_head(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def run(package: Path, engine: EngineName, first: int, capture: bool) -> list[tuple[NDArray[np.float32], ...]]:
    """Logits and captured rows of three steps of two sequences."""
    depth = manifests.read(package).facts.layers
    config = StageConfig(
        package=package, first_layer=first, end_layer=depth, engine=engine, mode="exact", kv_tokens=256, capture=capture
    )
    stage = load_stage(config)
    random = np.random.default_rng(0)
    steps = (
        (SequenceRows(0, 0, 20, 3), SequenceRows(1, 0, 7, 0)),
        (SequenceRows(1, 7, 5, 5), SequenceRows(0, 19, 1, 1)),
        (SequenceRows(0, 20, 4, 0),),
    )
    found = []
    for rows in steps:
        total = sum(r.count for r in rows)
        size = stage.facts.hidden_size
        x = random.normal(0, 1, (total, size)).astype(np.float32) if first else random.integers(0, 500, total)
        logits = stage.step(Batch(rows, x)).copy()
        found.append((logits, stage.hidden_rows.copy()))
    stage.close()
    return found


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_head_makes_the_logits_of_what_is_captured(tiny_package: Path, engine: EngineName, first: int) -> None:
    head = head_of(tiny_package)
    plain = run(tiny_package, engine, first, capture=False)
    captured = run(tiny_package, engine, first, capture=True)
    for (wanted, nothing), (logits, hidden) in zip(plain, captured, strict=True):
        assert len(nothing) == 0
        assert np.array_equal(logits, wanted)
        assert len(hidden) == len(logits)
        if len(hidden):
            assert np.abs(head(hidden[None])[0][0] - logits).max() <= 1e-5 * np.abs(logits).max()
    assert [len(hidden) for _, hidden in captured] == [3, 6, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stage_that_is_no_tail_captures_nothing(tiny_package: Path, engine: EngineName) -> None:
    config = StageConfig(
        package=tiny_package, first_layer=0, end_layer=2, engine=engine, mode="exact", kv_tokens=64, capture=True
    )
    stage = load_stage(config)
    assert stage.step(Batch((SequenceRows(0, 0, 4),), np.arange(4))).shape == (4, stage.facts.hidden_size)
    assert len(stage.hidden_rows) == 0
    stage.close()
