"""Which engines a package can run on in a fleet, what a node offers, and what it is measured with."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted_head import HARDWARE, record

from agent.fleet.control.messages import Hello
from agent.fleet.head.engines import engine_sizes, engines_of
from agent.fleet.node.node_settings import NodeSettings
from pipeline.planning.plan import ModelSize
from pipeline.running import RunOptions
from shards.errors import ConfigurationError, PackageError
from shards.llamacpp import binding
from shards.manifest import (
    GRAPH,
    LLAMACPP_METADATA,
    LLAMACPP_TENSORS,
    WEIGHTS,
    FileEntry,
    Manifest,
    ModelFacts,
    WeightSpans,
)
from shards.runtime import EngineKind, EngineName, StageConfig, kind_of

FACTS = ModelFacts(
    name="it", architecture=None, layers=4, hidden_size=64, kv_heads=2, head_size=32, vocabulary=99,
    context_length=512, stop_tokens=(2,), weights="f32",
)  # fmt: skip


def spans(layer: int) -> WeightSpans:
    return WeightSpans(
        shared=(), embedding=(), layers=tuple((((i * layer), (i + 1) * layer),) for i in range(4)), head=()
    )


def package(*, openvino: bool, llamacpp: bool) -> Manifest:
    """A manifest; a layer has 10 bytes for OpenVINO, and 7 for llama.cpp."""
    sizes = {GRAPH: 5, WEIGHTS: 40} if openvino else {}
    sizes |= {LLAMACPP_METADATA: 5, LLAMACPP_TENSORS: 28} if llamacpp else {}
    return Manifest(
        facts=FACTS,
        spans=spans(10) if openvino else WeightSpans.nothing(4),
        llamacpp=spans(7) if llamacpp else None,
        files=tuple(FileEntry(path=path, size=size, pieces=("0" * 64,)) for path, size in sizes.items()),
    )


BOTH, OPENVINO, LLAMACPP = (package(openvino=a, llamacpp=b) for a, b in ((True, True), (True, False), (False, True)))


def hello(*engines: EngineKind) -> Hello:
    return record("k" * 40).hello.model_copy(update={"engines": engines})


def test_the_engine_of_the_options_comes_first_and_llama_cpp_is_for_the_others() -> None:
    assert list(engine_sizes(BOTH, RunOptions())) == ["openvino-paged", "llamacpp"]
    assert list(engine_sizes(BOTH, RunOptions(engine="openvino-stateful"))) == ["openvino-stateful", "llamacpp"]
    assert list(engine_sizes(BOTH, RunOptions(engine="llamacpp"))) == ["llamacpp"]
    assert list(engine_sizes(OPENVINO, RunOptions())) == ["openvino-paged"]
    assert list(engine_sizes(LLAMACPP, RunOptions())) == ["llamacpp"]
    with pytest.raises(PackageError, match=r"no llama\.cpp backend"):
        engine_sizes(OPENVINO, RunOptions(engine="llamacpp"))


def test_each_engine_has_its_own_bytes() -> None:
    sizes = engine_sizes(BOTH, RunOptions(mode="exact"))
    assert {engine: size.layers for engine, size in sizes.items()} == {
        "openvino-paged": (10,) * 4,
        "llamacpp": (7,) * 4,
    }


def test_what_is_recorded_comes_from_openvino() -> None:
    assert list(engine_sizes(BOTH, RunOptions(capture=True))) == ["openvino-paged"]
    with pytest.raises(ConfigurationError, match=r"llama\.cpp alone.*without --capture"):
        engine_sizes(LLAMACPP, RunOptions(capture=True))


@pytest.mark.parametrize(
    ("installed", "engines"),
    [
        (("openvino",), ("openvino-paged",)),
        (("llamacpp",), ("llamacpp",)),
        (("openvino", "llamacpp"), ("openvino-paged", "llamacpp")),
    ],
)
def test_a_node_runs_what_it_has(installed: tuple[EngineKind, ...], engines: tuple[EngineName, ...]) -> None:
    assert engines_of(hello(*installed), engine_sizes(BOTH, RunOptions())) == engines


def test_a_node_with_nothing_for_the_model_is_told_what_is_wanted() -> None:
    with pytest.raises(ConfigurationError, match="it runs llamacpp, and the model is served with openvino-paged"):
        engines_of(hello("llamacpp"), engine_sizes(OPENVINO, RunOptions()))


@pytest.mark.parametrize(
    ("settings", "is_installed", "offered"),
    [
        ({}, True, ("openvino", "llamacpp")),
        ({}, False, ("openvino",)),
        ({"device": "CPU"}, True, ("openvino", "llamacpp")),
        ({"device": "GPU.1"}, True, ("openvino",)),
        ({"engine": "openvino"}, True, ("openvino",)),
        ({"engine": "llamacpp"}, True, ("llamacpp",)),
    ],
)
def test_a_pc_offers_what_is_installed_and_given(
    settings: dict[str, str], is_installed: bool, offered: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "is_installed", lambda: is_installed)
    assert NodeSettings.model_validate(settings).engines() == offered


def test_what_cannot_be_offered_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "is_installed", lambda: False)
    with pytest.raises(ConfigurationError, match=r"llama-cpp-python is not installed.*pip install"):
        NodeSettings(engine="llamacpp").engines()
    with pytest.raises(ConfigurationError, match="runs on the CPU, not on GPU"):
        NodeSettings(engine="llamacpp", device="GPU").engines()


def test_llama_cpp_runs_on_the_processor_whatever_openvino_sees() -> None:
    bare = HARDWARE.model_copy(update={"devices": ()})
    config = StageConfig(package=Path("any"), first_layer=0, end_layer=1, engine="llamacpp")
    assert NodeSettings().apply(config, Path("here"), bare).device == "CPU"
    node = record("k" * 40)
    node.device = "GPU"
    assert [node.device_for(engine) for engine in ("openvino-paged", "llamacpp")] == ["GPU", "CPU"]


def test_each_engine_is_of_a_library() -> None:
    assert [kind_of(engine) for engine in ("openvino-paged", "openvino-stateful", "llamacpp")] == [
        "openvino",
        "openvino",
        "llamacpp",
    ]
    assert isinstance(engine_sizes(BOTH, RunOptions())["llamacpp"], ModelSize)
