"""The export of an OpenVINO IR: a package that verifies, stage folders that run, and nothing left by what fails."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_gguf
from packages import ir_of
from tiny_gguf import write_tiny_gguf

from exporters.export import Export, export
from shards import manifest as manifests
from shards.errors import CapacityError, ConfigurationError, EdgeAgentError, ExportError, PackageError
from shards.loading import load_stage
from shards.manifest import WEIGHTS
from shards.runtime import Batch, SequenceRows, StageConfig
from shards.store import PackageStore

SPLIT = (12, 18)


@pytest.fixture(scope="module")
def exported(smollm2_ir: Path, tmp_path_factory: pytest.TempPathFactory) -> Export:
    """SmolLM2 exported with a split, verified. Read only."""
    return export(str(smollm2_ir), tmp_path_factory.mktemp("exported") / "smol", split=SPLIT)


@pytest.fixture(scope="module")
def divided(tiny_chat_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Export:
    """A tiny model exported with a split. Read only."""
    folder = tmp_path_factory.mktemp("divided")
    source = ir_of(tiny_chat_package, folder / "source")
    return export(str(source), folder / "tiny", split=(1, 3), verified=False)


@pytest.fixture
def ir(tiny_chat_package: Path, tmp_path: Path) -> Path:
    """A source folder of the test's own, of a tiny model; a file is replaced, never changed, since it is a link."""
    return ir_of(tiny_chat_package, tmp_path / "source")


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_package_is_complete_and_whole(exported: Export, smollm2_ir: Path) -> None:
    store = PackageStore(exported.package)
    store.verify(store.all_pieces())
    files = {path.relative_to(exported.package).as_posix() for path in exported.package.rglob("*") if path.is_file()}
    assert files == {manifests.MANIFEST, *(entry.path for entry in store.manifest.files)}
    assert (exported.package / WEIGHTS).read_bytes() == (smollm2_ir / "openvino_model.bin").read_bytes()
    assert not (exported.package / WEIGHTS).samefile(smollm2_ir / "openvino_model.bin")
    assert store.manifest == exported.manifest


def test_the_facts_are_the_models(exported: Export) -> None:
    facts = exported.manifest.facts
    assert (facts.name, facts.layers, facts.hidden_size, facts.kv_heads, facts.head_size) == (
        "SmolLM2-135M-Instruct", 30, 576, 3, 64,
    )  # fmt: skip
    assert (facts.vocabulary, facts.context_length, facts.stop_tokens) == (49152, 8192, (2,))
    assert facts.chat_template is not None


def test_two_stages_agree_with_the_whole_model(exported: Export) -> None:
    checked = exported.verification
    assert checked is not None
    assert checked.stages == 2
    assert checked.rows > 150
    assert 0 < checked.largest_difference <= 1e-3
    assert checked.same_top == 1


def test_layers_need_their_own_bytes_only(exported: Export) -> None:
    spans = exported.manifest.spans
    total = exported.manifest.file(WEIGHTS).size
    sizes = [sum(end - start for start, end in layer) for layer in spans.layers]
    assert len(set(sizes)) == 1
    assert sum(end - start for start, end in spans.of_stage(0, 15)) < total * 0.7
    claimed = np.zeros(total, np.uint8)
    for layer in spans.layers:
        for start, end in layer:
            claimed[start:end] += 1
    assert claimed.max() == 1


def test_stage_folders_are_small_and_say_what_they_are(exported: Export) -> None:
    assert [folder.name for folder in exported.stages] == ["smol-stage-0", "smol-stage-1"]
    assert sum(size(folder) for folder in exported.stages) < size(exported.package) * 1.5  # both hold the embedding
    for folder, (first, end) in zip(exported.stages, ((0, 12), (12, 30)), strict=True):
        store = PackageStore(folder)
        store.verify(store.all_pieces())
        stage = store.manifest.stage
        assert stage is not None
        assert (stage.package_id, stage.first_layer, stage.end_layer) == (exported.manifest.package_id, first, end)
        assert store.manifest.facts == exported.manifest.facts


def test_a_copied_stage_folder_runs_like_the_package(divided: Export, tmp_path: Path) -> None:
    numbers, facts = np.random.default_rng(0), divided.manifest.facts
    tokens, hidden = numbers.integers(0, facts.vocabulary, 40), numbers.normal(size=(40, facts.hidden_size))
    inputs: list[Any] = [tokens, hidden.astype(np.float32)]
    for number, (first, end) in enumerate(((0, 1), (1, 4))):
        copy = shutil.copytree(divided.stages[number], tmp_path / str(number))
        outputs = []
        for folder in (copy, divided.package):
            stage = load_stage(
                StageConfig(package=folder, first_layer=first, end_layer=end, mode="exact", kv_tokens=64, threads=1)
            )
            outputs.append(stage.step(Batch((SequenceRows(0, 0, 40, sample=40),), inputs[number])).copy())
            stage.close()
        assert np.array_equal(outputs[0], outputs[1])


def test_a_stage_folder_refuses_other_layers(divided: Export) -> None:
    with pytest.raises(PackageError, match="stage of layers 1-4, 0-4 were asked for"):
        load_stage(StageConfig(package=divided.stages[1], first_layer=0, end_layer=4, mode="exact"))


@pytest.mark.parametrize(
    ("split", "what"),
    [
        ((2, 1), "2,1 is 3 layers, the model has 4"),
        ((5,), "5 is 5 layers, the model has 4"),
        ((4, 0), "4,0 has a stage without layers"),
        ((-1, 5), "-1,5 has a stage without layers"),
    ],
)
def test_a_split_of_another_model_is_refused(ir: Path, tmp_path: Path, split: tuple[int, ...], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what) as caught:
        export(str(ir), tmp_path / "package", split=split)
    assert caught.value.where == "--split"
    assert list(tmp_path.iterdir()) == [ir]


def test_a_link_stays_one_and_what_it_points_at_is_replaced(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "tiny.gguf")
    target, alias = tmp_path / "elsewhere" / "package", tmp_path / "alias"
    target.mkdir(parents=True)
    if sys.platform == "win32":  # where only some users may make symbolic links
        import _winapi

        _winapi.CreateJunction(str(target), str(alias))
    else:
        alias.symlink_to(target)
    for force in (False, True):
        export(str(source), alias, weights="keep", verified=False, force=force)
        assert alias.resolve() == target
        assert PackageStore(target).manifest.facts.layers == tiny_gguf.LAYERS
        assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(
    "name", ["openvino_model.bin", "openvino_tokenizer.xml", "openvino_tokenizer.bin", "openvino_detokenizer.xml"]
)
def test_a_missing_file_is_named(ir: Path, tmp_path: Path, name: str) -> None:
    (ir / name).unlink()
    with pytest.raises(ExportError, match=f"{name} is missing") as caught:
        export(str(ir), tmp_path / "package")
    assert caught.value.where == str(ir)
    assert list(tmp_path.iterdir()) == [ir]


def replace(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def test_truncated_weights_are_named(ir: Path, tmp_path: Path) -> None:
    weights = ir / "openvino_model.bin"
    whole = weights.stat().st_size
    replace(weights, weights.read_bytes()[:-1])
    with pytest.raises(ExportError, match=f"needs {whole} bytes, the file has {whole - 1}") as caught:
        export(str(ir), tmp_path / "package")
    assert caught.value.where == str(weights)
    assert list(tmp_path.iterdir()) == [ir]


@pytest.mark.parametrize("content", [b"", b"not xml", b"<net/>"])
def test_a_damaged_graph_is_named(ir: Path, tmp_path: Path, content: bytes) -> None:
    replace(ir / "openvino_model.xml", content)
    with pytest.raises(EdgeAgentError, match=r"openvino_model\.xml"):
        export(str(ir), tmp_path / "package")
    assert list(tmp_path.iterdir()) == [ir]


def test_another_models_tokenizer_is_found_out(ir: Path, tmp_path: Path) -> None:
    for suffix in ("xml", "bin"):
        replace(ir / f"openvino_detokenizer.{suffix}", (ir / f"openvino_tokenizer.{suffix}").read_bytes())
    with pytest.raises(ExportError, match="tokenizer"):
        export(str(ir), tmp_path / "package")
    assert list(tmp_path.iterdir()) == [ir]


def test_an_ir_is_not_compressed_again(ir: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="cannot become int4"):
        export(str(ir), tmp_path / "package", weights="int4")


def test_a_package_is_replaced_only_when_told_to(tmp_path: Path) -> None:
    source, target = write_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "package"
    first = export(str(source), target, weights="keep", verified=False)
    assert first.verification is None
    with pytest.raises(ExportError, match="package here already"):
        export(str(source), target, weights="keep", verified=False)
    (target / WEIGHTS).unlink()
    again = export(str(source), target, weights="keep", verified=False, force=True)
    assert again.manifest.package_id == first.manifest.package_id
    PackageStore(target).verify(PackageStore(target).all_pieces())
    assert sorted(tmp_path.iterdir()) == sorted([source, target])


@pytest.mark.parametrize(("phase", "part"), [("writing the package", 0.3), ("verifying", 0)])
def test_an_interrupted_export_leaves_what_was_there(
    tiny_chat_package: Path, ir: Path, tmp_path: Path, phase: str, part: float
) -> None:
    target = shutil.copytree(tiny_chat_package, tmp_path / "package")

    def interrupt(what: str, done: float, total: float) -> None:
        if what == phase and done >= total * part:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(str(ir), target, force=True, progress=interrupt)
    assert sorted(tmp_path.iterdir()) == sorted([ir, target])
    store = PackageStore(target)
    assert store.manifest == manifests.read(tiny_chat_package)
    store.verify(store.all_pieces())


def test_a_full_disk_is_seen_before_anything_is_written(
    smollm2_ir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 99, 1_000_000))
    with pytest.raises(CapacityError, match=r"98 MB wanted, 1 MB free"):
        export(str(smollm2_ir), tmp_path / "package")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_leaves_nothing(ir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CapacityError, match=r"the disk is full: the file has [\d.]+ MB, [\d,.]+ MB are left"):
        export(str(ir), tmp_path / "package")
    assert list(tmp_path.iterdir()) == [ir]


def test_sources_that_are_none_say_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.gguf").write_bytes(b"")
    (tmp_path / "text.txt").write_text("", "utf-8")
    for source, words in (
        (tmp_path / "nowhere", "no such folder or file"),
        (tmp_path / "nowhere.gguf", "no such file"),
        (tmp_path / "folder", r"neither openvino_model.xml .* nor config.json.*give one of them: model.gguf"),
        (tmp_path / "text.txt", "not a GGUF file"),
    ):
        with pytest.raises(ExportError, match=words) as caught:
            export(str(source), tmp_path / "package")
        assert caught.value.where == str(source)


def test_the_manifest_can_be_read_without_us(exported: Export) -> None:
    raw = json.loads((exported.package / manifests.MANIFEST).read_text("utf-8"))
    assert raw["format"] == manifests.FORMAT
    assert raw["source"]["kind"] == "OpenVINO IR"
    assert "openvino" in raw["created_with"]
