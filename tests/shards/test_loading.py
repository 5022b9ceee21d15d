from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chains import Chain, chain
from packages import rehash
from unsplit import Whole
from zoo import LAYERS

from shards import manifest as manifests
from shards.edges import begin_of, end_of, layer_words, layers_between
from shards.errors import CapacityError, PackageError, StageError
from shards.loading import load_stage
from shards.progress import silent
from shards.runtime import StageConfig
from shards.store import PackageStore

TOKENS = list(range(3, 43))


def config(package: Path, first: int = 0, end: int = LAYERS, **settings: Any) -> StageConfig:
    return StageConfig(package=package, first_layer=first, end_layer=end, **({"mode": "exact"} | settings))


@pytest.fixture
def copied(tiny_package: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_package, tmp_path / "package"))


def test_a_stage_says_what_it_is(tiny_package: Path) -> None:
    stage = load_stage(config(tiny_package, 1, 3, kv_tokens=65, threads=1))
    facts = stage.facts
    stage.close()
    model = manifests.read(tiny_package).facts
    assert (facts.first_layer, facts.end_layer, facts.depth, facts.is_first, facts.is_tail) == (1, 3, 4, False, False)
    assert (facts.hidden_size, facts.vocabulary) == (model.hidden_size, model.vocabulary)
    assert (facts.block, facts.kv_tokens) == (32, 96)
    assert facts.properties["INFERENCE_PRECISION_HINT"] == "f32"
    assert facts.properties["KV_CACHE_PRECISION"] == "f32"
    assert facts.properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == "0"
    assert facts.properties["INFERENCE_NUM_THREADS"] == "1"


def test_a_stage_says_in_what_layer_it_begins_and_ends(tiny_package: Path) -> None:
    parts = {"begins_after_attention": True, "ends_after_attention": True}
    stage = load_stage(config(tiny_package, 1, 4, **parts))
    facts = stage.facts
    stage.close()
    assert (layer_words(facts), begin_of(facts), end_of(facts)) == ("1½-3½", 1.5, 3.5)
    assert (facts.is_first, facts.is_tail) == (False, False)


def test_a_stage_needs_only_its_own_bytes(tiny_package: Path, tmp_path: Path) -> None:
    """Each stage from a copy of the package that has nothing but its pieces, the rest of the weights zeroed."""
    whole = PackageStore(tiny_package)
    weights = (tiny_package / manifests.WEIGHTS).read_bytes()
    stages = []
    for begin, after in ((0, 1.5), (1.5, 3), (3, LAYERS)):
        layers = layers_between(begin, after)
        first, end = layers["first_layer"], layers["end_layer"]
        store = PackageStore.create(tmp_path / f"{first}-{end}", whole.manifest)
        for piece in store.pieces_of_stage(first, end):
            store.write(piece, whole.read(piece))
        only = bytearray(len(weights))
        for start, stop in whole.manifest.spans.of_stage(first, end):
            only[start:stop] = weights[start:stop]
        (store.folder / manifests.WEIGHTS).write_bytes(only)
        rehash(store.folder)
        stages.append(load_stage(config(store.folder, first, end).model_copy(update={**layers})))
    got = Chain(stages).rows(1, 0, TOKENS)
    np.testing.assert_allclose(got, Whole(tiny_package).logits(TOKENS), rtol=0, atol=1e-4)


def test_a_stage_folder_loads_as_its_stage(tiny_package: Path, tmp_path: Path) -> None:
    from exporters.split import write_stage

    write_stage(tiny_package, 1, 3, tmp_path / "stage", silent)
    with (
        chain(tiny_package, (0, 1)) as first,
        chain(tmp_path / "stage", (1, 3)) as middle,
        chain(tiny_package, (3, LAYERS)) as tail,
    ):
        got = Chain([*first.stages, *middle.stages, *tail.stages]).rows(1, 0, TOKENS)
    np.testing.assert_allclose(got, Whole(tiny_package).logits(TOKENS), rtol=0, atol=1e-4)
    with pytest.raises(PackageError, match="the stage of layers 1-3, 0-1 were asked for"):
        load_stage(config(tmp_path / "stage", 0, 1))


def test_pieces_that_have_not_arrived_are_named(tiny_package: Path, tmp_path: Path) -> None:
    store = PackageStore.create(tmp_path / "empty", manifests.read(tiny_package))
    with pytest.raises(PackageError, match="pieces are not here yet"):
        load_stage(config(store.folder))


@pytest.mark.parametrize(("first", "end"), [(0, 5), (3, 3), (4, 5)])
def test_layers_that_are_not_there_are_refused(tiny_package: Path, first: int, end: int) -> None:
    with pytest.raises(PackageError, match=f"layers {first}-{end} were asked for, the model has 0-4"):
        load_stage(config(tiny_package, first, end))


def test_an_unknown_device_is_refused(tiny_package: Path) -> None:
    with pytest.raises(StageError, match=r"OpenVINO sees no device 'GPU\.9' here"):
        load_stage(config(tiny_package, device="GPU.9"))


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="this is not a model package"):
        load_stage(config(tmp_path))


def test_weights_cut_short_are_refused(copied: Path) -> None:
    weights = copied / manifests.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(PackageError, match=r"the file has \d+ bytes, the manifest says \d+"):
        load_stage(config(copied))


def test_flipped_weights_are_refused_where_they_are_needed(copied: Path) -> None:
    weights = copied / manifests.WEIGHTS
    content = bytearray(weights.read_bytes())
    start, end = manifests.read(copied).spans.layers[2][-1]
    content[(start + end) // 2] ^= 1
    weights.write_bytes(content)
    with pytest.raises(PackageError, match=r"weights\.bin: bytes \d+-\d+ .* are not what the manifest says"):
        load_stage(config(copied, 2, 3))


def test_a_damaged_graph_is_refused(copied: Path) -> None:
    graph = copied / manifests.GRAPH
    size = graph.stat().st_size
    graph.write_bytes(graph.read_bytes()[: size // 2].ljust(size, b" "))
    with pytest.raises(PackageError, match=r"graph\.xml: bytes \d+-\d+ .* are not what the manifest says"):
        load_stage(config(copied))
    rehash(copied)
    with pytest.raises(PackageError, match=r"graph\.xml: OpenVINO cannot read the graph: .*Export the model again"):
        load_stage(config(copied))


def test_a_graph_of_another_depth_is_refused(copied: Path) -> None:
    raw = json.loads((copied / manifests.MANIFEST).read_text("utf-8"))
    raw["facts"]["layers"] = 5
    raw["spans"]["layers"].append([])
    (copied / manifests.MANIFEST).write_text(json.dumps(raw), "utf-8")
    with pytest.raises(PackageError, match="the graph has 4 layers, the manifest says 5"):
        load_stage(config(copied))


def test_a_kv_cache_beyond_memory_is_refused(tiny_package: Path) -> None:
    with pytest.raises(CapacityError, match=r"a KV cache of \d+ tokens takes \d+ MiB, \d+ MiB are free"):
        load_stage(config(tiny_package, kv_tokens=10**10))


def test_loading_tells_how_far_it_is(tiny_package: Path) -> None:
    told: list[tuple[str, float, float]] = []
    load_stage(config(tiny_package, 0, 1), progress=lambda *told_now: told.append(told_now)).close()
    steps = [done for what, done, _ in told if what != "verifying"]
    assert steps == [0, 1, 2, 3]
    assert told[-1] == ("ready", 3, 3)


def test_a_process_is_pinned_before_it_loads(tiny_package: Path) -> None:
    program = (
        "import sys, psutil\n"
        "from shards.loading import load_stage\n"
        "from shards.runtime import StageConfig\n"
        "assert 'openvino' not in sys.modules\n"
        "stage = load_stage(StageConfig.model_validate_json(sys.argv[1]))\n"
        "print(psutil.Process().cpu_affinity(), stage.facts.properties['INFERENCE_NUM_THREADS'])\n"
    )
    wanted = config(tiny_package, cores=(0,)).model_dump_json()
    done = subprocess.run([sys.executable, "-c", program, wanted], capture_output=True, text=True, encoding="utf-8")
    assert done.stdout.split() == ["[0]", "1"], done.stderr
