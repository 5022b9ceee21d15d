"""The llama.cpp backend of a package: made of any GGUF that llama.cpp can run in stages, refused by name otherwise."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from llamacpp_families import write_gpt2, write_llama_like, write_olmo2
from tiny_gguf import write_tiny_gguf

from exporters import llamacpp
from exporters.export import Export, export
from exporters.sources import LlamaCppSource
from exporters.sources.gguf_file import read_gguf
from shards import manifest as manifests
from shards.errors import ConfigurationError, EdgeAgentError, ExportError, StageError
from shards.llamacpp import binding
from shards.manifest import LLAMACPP_METADATA, LLAMACPP_TENSORS
from shards.progress import silent
from shards.store import PackageStore

LAYERS = 4


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """A tiny llama with both backends, verified. Read only."""
    folder = tmp_path_factory.mktemp("both")
    return export(str(write_tiny_gguf(folder / "tiny.gguf", layers=LAYERS)), folder / "tiny", weights="keep")


def prepared(path: Path, folder: Path) -> LlamaCppSource:
    folder.mkdir()
    return llamacpp.prepare(read_gguf(path), folder, silent, checked=True)


def without(package: Path) -> None:
    """Nothing is there, nor beside it, but the source."""
    assert not package.exists()
    assert [path.name for path in package.parent.iterdir() if path.suffix != ".gguf"] == []


def test_both_backends_are_made_and_verified(both: Export) -> None:
    manifest = both.manifest
    assert manifest.has_openvino
    assert both.verification is not None and both.verification.passed
    assert both.llamacpp_rows == 104
    store = PackageStore(both.package)
    store.verify(store.all_pieces())
    assert "llama.cpp backend" not in manifest.source and "OpenVINO backend" not in manifest.source


def test_the_tensors_are_the_files_own_bytes(both: Export) -> None:
    file = read_gguf(Path(both.manifest.source["path"]))
    begin = min(tensor.start for tensor in file.tensors)
    end = max(tensor.start + tensor.size for tensor in file.tensors)
    assert (both.package / LLAMACPP_TENSORS).read_bytes() == file.path.read_bytes()[begin:end]
    said = (both.package / LLAMACPP_METADATA).read_text("utf-8")
    assert "tokenizer." not in said
    assert len(said) < 20_000


def test_each_byte_belongs_to_who_needs_it(both: Export) -> None:
    spans = both.manifest.llamacpp
    assert spans is not None and len(spans.layers) == LAYERS
    owners = np.zeros(both.manifest.file(LLAMACPP_TENSORS).size, np.uint8)
    for layer in spans.layers:
        for start, end in layer:
            owners[start:end] += 1
    assert owners.max() == 1
    assert spans.head == spans.embedding  # the embedding is the head matrix, too
    assert sum(end - start for start, end in spans.shared) == 64 * 4  # the last norm


def test_packages_from_before_have_the_id_they_had(both: Export) -> None:
    manifest = both.manifest
    old = manifest.model_copy(update={"llamacpp": None})
    assert old.package_id != manifest.package_id
    text = json.loads(old.model_dump_json())
    del text["llamacpp"]
    again = manifests.parse(json.dumps(text).encode(), where="here")
    assert again.llamacpp is None and again.has_openvino
    assert again.package_id == old.package_id


def test_where_openvino_cannot_the_package_has_llamacpp_alone(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "tiny.gguf", layers=LAYERS, stored="Q5_0")
    made = export(str(source), tmp_path / "tiny", weights="keep")
    assert not made.manifest.has_openvino
    assert made.verification is None and made.llamacpp_rows == 104
    assert "the conversion failed" in made.manifest.source["OpenVINO backend"]
    facts = made.manifest.facts
    assert (facts.layers, facts.hidden_size, facts.kv_heads, facts.head_size, facts.weights) == (
        LAYERS, 64, 2, 16, "Q5_0, F32",
    )  # fmt: skip
    assert facts.stop_tokens == (0, 2)
    assert (made.package / manifests.TOKENIZER).is_file()
    files = {path.relative_to(made.package).as_posix() for path in made.package.rglob("*") if path.is_file()}
    assert files == {manifests.MANIFEST, *(entry.path for entry in made.manifest.files)}


def test_the_facts_are_those_of_the_graph(both: Export, tmp_path: Path) -> None:
    alone = export(both.manifest.source["path"], tmp_path / "alone", backend="llamacpp", verified=False)
    assert alone.llamacpp_rows == 0
    assert alone.manifest.facts.model_copy(update={"weights": both.manifest.facts.weights}) == both.manifest.facts


@pytest.mark.parametrize("backend", ["llamacpp", "both"])
def test_without_llamacpp_it_says_how_to_get_it(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "is_installed", lambda: False)
    source = write_tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(StageError, match=r'not installed.*pip install "edge-agent\[llamacpp\]"'):
        export(str(source), tmp_path / "package", backend=backend)  # type: ignore[arg-type]
    without(tmp_path / "package")
    made = export(str(source), tmp_path / "package", weights="keep", verified=False)
    assert made.manifest.llamacpp is None and made.llamacpp_rows is None
    assert "pip install" in made.manifest.source["llama.cpp backend"]


def test_only_a_gguf_has_this_backend(smollm2_ir: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"llama.cpp runs GGUF files only"):
        export(str(smollm2_ir), tmp_path / "package", backend="both")
    without(tmp_path / "package")


def test_stage_folders_are_openvinos(both: Export, tmp_path: Path) -> None:
    source = both.manifest.source["path"]
    with pytest.raises(ConfigurationError, match=r"stage folders are for OpenVINO, not for llama.cpp"):
        export(source, tmp_path / "package", backend="llamacpp", split=(2, 2))
    made = export(source, tmp_path / "package", weights="keep", split=(2, 2), verified=False)
    assert made.manifest.llamacpp is not None
    assert [manifests.read(folder).llamacpp for folder in made.stages] == [None, None]
    bad = write_tiny_gguf(tmp_path / "tiny.gguf", layers=LAYERS, stored="Q5_0")
    with pytest.raises(ExportError, match="stage folders are for OpenVINO; the package has none: the conversion"):
        export(str(bad), tmp_path / "other", weights="keep", split=(2, 2), verified=False)


@pytest.mark.parametrize(
    ("architecture", "extra"),
    [("granite", {"embedding_scale": 12.0, "logit_scale": 8.0, "residual_scale": 0.22}), ("qwen2", {})],
)
def test_families_that_can_be_cut(architecture: str, extra: dict[str, float], tmp_path: Path) -> None:
    source = write_llama_like(tmp_path / "model.gguf", architecture, LAYERS, extra)
    assert prepared(source, tmp_path / "work").checked_rows == 104
    assert sorted(path.name for path in (tmp_path / "work" / "llamacpp").iterdir()) == [
        "check.log", "metadata.json", "tensors.bin",
    ]  # fmt: skip


def test_sliding_windows_keep_their_layers(tmp_path: Path) -> None:
    """Three of four layers have one, counted from the model's first layer and not from the stage's."""
    source = write_olmo2(tmp_path / "model.gguf", layers=6, window=200)
    assert prepared(source, tmp_path / "work").checked_rows == 104


def test_a_pattern_that_is_not_known_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from exporters.llamacpp_check import check_cuts

    monkeypatch.setattr(llamacpp, "_WINDOW_PERIODS", {})
    source = write_olmo2(tmp_path / "model.gguf", layers=6, window=200)
    llamacpp.prepare(read_gguf(source), tmp_path, silent, checked=False)
    with pytest.raises(ExportError, match=r"architecture olmo2 differ from the whole model when .* behind layer \d"):
        check_cuts(str(source), str(tmp_path / "llamacpp"), silent)


def test_layers_that_depend_on_their_number_are_refused_by_name(tmp_path: Path) -> None:
    """SmolLM3 leaves out the rotation in each fourth layer."""
    source = write_llama_like(tmp_path / "model.gguf", "smollm3", 8)
    with pytest.raises(ExportError, match=r"of the architecture smollm3 differ .* it must be 0.*--backend openvino"):
        prepared(source, tmp_path / "work")


def test_hidden_states_that_cannot_be_handed_on_are_refused_by_name(tmp_path: Path) -> None:
    """GPT-2 adds positions to whatever comes in."""
    with pytest.raises(ExportError, match="of the architecture gpt2 differ from the whole model"):
        prepared(write_gpt2(tmp_path / "model.gguf", LAYERS), tmp_path / "work")


def test_an_architecture_that_is_not_known_is_named(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "tiny.gguf", architecture="nonesuch")
    with pytest.raises(ExportError, match=r"cannot run the architecture nonesuch: .*unknown model architecture"):
        export(str(source), tmp_path / "package", backend="both")
    without(tmp_path / "package")


def test_layers_that_llamacpp_misses_tensors_of_are_refused(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "tiny.gguf", architecture="qwen3")  # wants norms of its heads
    with pytest.raises(ExportError, match=r"cannot run the architecture qwen3: .*attn_k_norm.weight' not found"):
        prepared(source, tmp_path / "work")


@pytest.mark.parametrize("backend", ["llamacpp", "both", None])
def test_hostile_files_are_refused_before_anything_is_written(
    backend: str | None, both: Export, tmp_path: Path
) -> None:
    content = Path(both.manifest.source["path"]).read_bytes()
    kind = content.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    depth = content.index(b"llama.block_count") + len(b"llama.block_count") + 4
    damaged = {
        "is cut short": content[:-100],
        "cut short or damaged": content[:3000],
        "type that is not known here": content[:kind] + struct.pack("<I", 77) + content[kind + 4 :],
        "it is to have 4000000000 layers": content[:depth] + struct.pack("<I", 4_000_000_000) + content[depth + 4 :],
        "the file holds no language model": content.replace(b"general.architecture", b"general.archltecture"),
    }
    for said, data in damaged.items():
        (tmp_path / "bad.gguf").write_bytes(data)
        with pytest.raises(EdgeAgentError) as caught:
            export(str(tmp_path / "bad.gguf"), tmp_path / "package", backend=backend)  # type: ignore[arg-type]
        assert said in str(caught.value)
        without(tmp_path / "package")


NO_MODELS = {
    "holds no language model: the architecture clip does not say how many layers": {
        "architecture": "clip",
        "metadata": {"clip.block_count": None, "clip.vision.block_count": 2},
    },
    "holds no language model: the architecture llama does not say how many layers": {
        "metadata": {"general.type": "adapter", "llama.block_count": None}
    },
    "its tokenizer is of the kind 'bert'": {"architecture": "bert", "metadata": {"tokenizer.ggml.model": "bert"}},
    "it is to have 0 layers": {"layers": 0},
    "one of 3 parts of a model": {"metadata": {"split.count": 3}},
    "its architecture has no name": {"architecture": "ll\x1b[2Jma"},
    "does not say how long a context": {"metadata": {"llama.context_length": 0}},
    "its alignment is 0": {"metadata": {"general.alignment": 0}},
}


@pytest.mark.parametrize("backend", ["llamacpp", "both", "openvino"])
def test_what_is_no_decoder_is_told_by_what_it_is(backend: str, tmp_path: Path) -> None:
    for said, what in NO_MODELS.items():
        source = write_tiny_gguf(tmp_path / "other.gguf", **what)  # type: ignore[arg-type]
        with pytest.raises(ExportError) as caught:
            export(str(source), tmp_path / "package", backend=backend)  # type: ignore[arg-type]
        assert said in str(caught.value)
        assert str(source) in str(caught.value)
        assert str(caught.value).isprintable()
        without(tmp_path / "package")


def test_layers_beyond_those_the_file_speaks_of_are_refused(both: Export, tmp_path: Path) -> None:
    content = Path(both.manifest.source["path"]).read_bytes()
    at = content.index(b"llama.block_count") + len(b"llama.block_count") + 4
    (tmp_path / "bad.gguf").write_bytes(content[:at] + struct.pack("<I", 3) + content[at + 4 :])
    with pytest.raises(ExportError, match="there are tensors of 4 layers, the model has 3"):
        export(str(tmp_path / "bad.gguf"), tmp_path / "package", backend="llamacpp")


def test_weights_that_make_no_numbers_are_told(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "tiny.gguf", stored="F32")
    begin = min(tensor.start for tensor in read_gguf(source).tensors)
    content = source.read_bytes()
    source.write_bytes(content[:begin] + b"\xff" * (len(content) - begin))
    with pytest.raises(ExportError, match=r"the weights in it make no numbers of some tokens.*damaged"):
        prepared(source, tmp_path / "work")


def test_a_crash_of_llamacpp_is_an_error(tmp_path: Path) -> None:
    """It ends its process over a rotation of an odd width; the export's own goes on."""
    source = write_tiny_gguf(tmp_path / "tiny.gguf", stored="F32", metadata={"llama.rope.dimension_count": 16 * 5})
    with pytest.raises(ExportError, match="architecture llama"):
        prepared(source, tmp_path / "work")
    shutil.rmtree(tmp_path / "work")
