"""What KV caches are kept in, on the real device, and what the planner says they cost."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from chains import Chain, chain
from numpy.typing import NDArray
from unsplit import Whole
from zoo import LAYERS, VOCABULARY

from shards import loading, manifest
from shards.device import compile_stage, properties
from shards.errors import ConfigurationError, StageError
from shards.graph import block_tokens, cache_ports, make_paged
from shards.kv_cache import kv_precision, kv_token_bytes
from shards.loading import load_stage
from shards.runtime import EngineName, KvPrecision, StageConfig
from shards.store import PackageStore

PRECISIONS: tuple[KvPrecision, ...] = ("u8", "f16", "f32")
ENGINES: tuple[EngineName, ...] = ("openvino-paged", "openvino-stateful")
WIDTHS: dict[KvPrecision, tuple[str, ...]] = {"u8": ("u8",), "f16": ("f16", "bf16"), "f32": ("f32",)}
TOKENS = np.random.default_rng(3).integers(3, VOCABULARY, 90).tolist()


def test_fast_mode_keeps_it_in_u8_and_exact_mode_in_f32_unless_told() -> None:
    assert (kv_precision("fast", None), kv_precision("exact", None)) == ("u8", "f32")
    assert [kv_precision("fast", wanted) for wanted in PRECISIONS] == list(PRECISIONS)
    assert kv_precision("exact", "f32") == "f32"


@pytest.mark.parametrize("wanted", ["u8", "f16"])
def test_exact_mode_takes_no_other_and_says_so(wanted: KvPrecision) -> None:
    with pytest.raises(
        ConfigurationError, match=f"kv_precision: exact mode keeps its KV cache in f32, not in {wanted}"
    ):
        kv_precision("exact", wanted)
    with pytest.raises(ConfigurationError, match=wanted):
        properties("CPU", "exact", kv_precision=wanted)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("package", ["tiny_package", "smollm2_package"])
def test_a_tokens_bytes_are_those_of_the_devices_blocks(
    package: str, precision: KvPrecision, request: pytest.FixtureRequest
) -> None:
    core, store = ov.Core(), PackageStore(request.getfixturevalue(package))
    stage = loading.cut(loading.read_graph(core, store), store.manifest, 1, 3)
    make_paged(stage)
    compiled = compile_stage(core, stage, "CPU", properties("CPU", "fast", kv_precision=precision))
    ports = cache_ports(compiled)
    measured = sum(port.block_bytes for port in ports) / block_tokens(ports) / 2
    assert kv_token_bytes(store.manifest.facts, precision) == measured


def test_the_stateful_engine_takes_more(smollm2_package: Path) -> None:
    facts = manifest.read(smollm2_package).facts
    assert [kv_token_bytes(facts, precision) for precision in PRECISIONS] == [456, 768, 1536]
    assert kv_token_bytes(facts, "f16", "openvino-stateful") > 768


@pytest.mark.parametrize("precision", [None, *PRECISIONS])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_in_force_is_told(tiny_package: Path, engine: EngineName, precision: KvPrecision | None) -> None:
    with _fast(tiny_package, engine, precision) as stages:
        told = stages.stages[0].facts.properties
    assert told["KV_CACHE_PRECISION"] in WIDTHS[precision or "u8"]
    if precision == "f32":
        assert told["INFERENCE_PRECISION_HINT"] == "f32"
    if precision == "f16":  # attention reads them in what it computes in
        assert told["KV_CACHE_PRECISION"] == ("bf16" if told["INFERENCE_PRECISION_HINT"] == "bf16" else "f16")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_stateful_engine_keeps_what_it_tells(tiny_package: Path, precision: KvPrecision) -> None:
    """Read back, keys and values are f32 whatever they are kept in; how many of its bits are used tells the rest."""
    with _fast(tiny_package, "openvino-stateful", precision) as stages:
        stages.rows(1, 0, TOKENS)
        (stage,) = stages.stages
        states = stage._sequences[1].request.query_state()  # type: ignore[attr-defined]
        bits = np.concatenate([state.state.data.view(np.uint32).ravel() for state in states])
    unused = {"bf16": 0xFFFF, "f16": 0x1FFF}.get(stage.facts.properties["KV_CACHE_PRECISION"], 0)
    assert not np.any(bits & unused)
    assert np.any(bits & 0x1FFF) == (unused == 0)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("engine", ENGINES)
def test_logits_stay_near_the_exact_ones_in_every_precision(
    tiny_package: Path, exact: NDArray[np.float32], engine: EngineName, precision: KvPrecision
) -> None:
    with _fast(tiny_package, engine, precision) as stages:
        whole = stages.rows(1, 0, TOKENS)
        stages.fork(1, 2, 64)
        forked = stages.rows(2, 64, TOKENS[64:])
        stages.rows(1, 70, TOKENS[:5])
        rolled_back = stages.rows(1, 64, TOKENS[64:])
    for got in (whole, forked, rolled_back):
        assert np.abs(got - exact[-len(got) :]).max() < 0.15 * np.abs(exact).max()


@pytest.fixture(scope="module")
def exact(tiny_package: Path) -> NDArray[np.float32]:
    return Whole(tiny_package).logits(TOKENS)


def test_a_device_that_keeps_it_otherwise_is_found_out(tiny_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*arguments: object, **_: object) -> dict[str, object]:
        return {"KV_CACHE_PRECISION": "u8"}

    monkeypatch.setattr("shards.device.properties", without)
    config = StageConfig(package=tiny_package, first_layer=0, end_layer=LAYERS, kv_precision="f16", tune=False)
    with pytest.raises(StageError, match="kv_precision: CPU keeps its KV cache in u8, not in f16"):
        load_stage(config)


def test_a_precision_that_the_device_does_not_take_is_one_error(
    tiny_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*arguments: object, **_: object) -> dict[str, object]:
        return {"KV_CACHE_PRECISION": "f64"}

    monkeypatch.setattr("shards.device.properties", wrong)
    config = StageConfig(package=tiny_package, first_layer=0, end_layer=LAYERS, tune=False)
    with pytest.raises(StageError, match=r"f64 for property key KV_CACHE_PRECISION.*KV cache precision for this stage"):
        load_stage(config)


def _fast(package: Path, engine: EngineName, precision: KvPrecision | None) -> AbstractContextManager[Chain]:
    layers = manifest.read(package).facts.layers
    settings = {"mode": "fast", "tune": False, "engine": engine, "kv_precision": precision, "threads": 1}
    return chain(package, (0, layers), **settings)
