"""What only the llama.cpp engine does: stages that equal the unsplit model to the bit, and cells that two sequences
share. What every engine must do is in test_engines.py."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from chains import CLOSE, Chain, chain
from llamacpp_families import VOCABULARY, write_llama_like, write_olmo2
from numpy.typing import NDArray
from packages import llamacpp_package_of, rehash
from tiny_gguf import write_tiny_gguf
from unsplit import WholeGguf

from shards import manifest as manifests
from shards.errors import CapacityError, PackageError, StageError
from shards.llamacpp.context import SEQUENCES
from shards.loading import load_stage
from shards.manifest import LLAMACPP_METADATA, LLAMACPP_TENSORS
from shards.runtime import Batch, SequenceRows, StageConfig
from shards.store import PackageStore

ENGINE = "llamacpp"
LAYERS = 4
TOKENS = np.random.default_rng(11).integers(3, VOCABULARY, 300).tolist()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    source = write_tiny_gguf(folder / "tiny.gguf", layers=LAYERS, stored="F32", vocabulary_size=VOCABULARY)
    return llamacpp_package_of(source, folder / "package")


def rows_in_chunks(stages: Chain, tokens: list[int], chunk: int) -> NDArray[np.float32]:
    parts = [stages.rows(1, start, tokens[start : start + chunk]) for start in range(0, len(tokens), chunk)]
    return np.concatenate(parts)


def config(package: Path, first: int = 0, end: int = LAYERS, **settings: Any) -> StageConfig:
    given = {"mode": "exact", "engine": ENGINE, "kv_tokens": 256} | settings
    return StageConfig(package=package, first_layer=first, end_layer=end, **given)


@pytest.mark.parametrize("edges", [(0, 30), (0, 15, 30), (0, 1, 22, 30)], ids=lambda edges: f"{len(edges) - 1} stages")
def test_logits_are_the_unsplit_models_to_the_bit(smollm2_llamacpp_package: Path, edges: tuple[int, ...]) -> None:
    tokens = np.random.default_rng(2).integers(0, 49152, 100).tolist()
    want = WholeGguf(smollm2_llamacpp_package).logits(tokens, chunk=33)
    with chain(smollm2_llamacpp_package, edges, engine=ENGINE, threads=1) as stages:
        got = rows_in_chunks(stages, tokens, 33)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("architecture", "extra"),
    [("granite", {"embedding_scale": 12.0, "logit_scale": 8.0, "residual_scale": 0.22}), ("qwen2", {})],
)
def test_other_families_are_cut_to_the_bit(architecture: str, extra: dict[str, float], tmp_path: Path) -> None:
    """Granite multiplies what comes in, which a later stage must not do again; Qwen2's biases may be missing."""
    source = write_llama_like(tmp_path / "model.gguf", architecture, LAYERS, extra)
    package = llamacpp_package_of(source, tmp_path / "package")
    want = WholeGguf(package).logits(TOKENS[:64], chunk=32)
    with chain(package, (0, 1, 3, LAYERS), engine=ENGINE, threads=1) as stages:
        np.testing.assert_array_equal(rows_in_chunks(stages, TOKENS[:64], 32), want)


@pytest.mark.parametrize("together", [512, 16])
def test_what_a_sliding_window_hides_comes_back_with_a_rollback(
    together: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp gives cells away that are out of a sequence's sight to whoever comes along looking for room."""
    from shards.llamacpp import context

    monkeypatch.setattr(context, "_MOST_ROWS", together)
    package = llamacpp_package_of(write_olmo2(tmp_path / "olmo.gguf", LAYERS, window=8), tmp_path / "package")
    want = WholeGguf(package).logits(TOKENS[:60])
    with chain(package, (0, 1, LAYERS), engine=ENGINE) as stages:
        stages.rows(8, 0, TOKENS[100:132])
        stages.rows(1, 0, TOKENS[:60])
        stages.fork(1, 2, 32)
        stages.free(8)  # the search begins where it was, and goes on over the cells of sequence 1
        stages.rows(5, 0, TOKENS[140:230])
        np.testing.assert_allclose(stages.rows(1, 33, TOKENS[33:60]), want[33:60], rtol=0, atol=CLOSE)
        stages.free(5, 1)
        stages.rows(6, 0, TOKENS[140:230])
        np.testing.assert_allclose(stages.rows(2, 32, TOKENS[32:60]), want[32:60], rtol=0, atol=CLOSE)


def test_a_step_of_more_rows_than_one_run_takes_is_one_step(tiny: Path) -> None:
    """Chunks of a step are the engine's own affair, and so is that a row has its own place in the answer."""
    from shards.llamacpp import context

    want = WholeGguf(tiny).logits(TOKENS[:90])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "_MOST_ROWS", 16)
        with chain(tiny, (0, 2, LAYERS), engine=ENGINE) as stages:
            rows = [SequenceRows(1, 0, 40, 3), SequenceRows(2, 0, 1), SequenceRows(3, 0, 90, 90)]
            got = stages.step(rows, [*TOKENS[:40], TOKENS[0], *TOKENS[:90]])
            np.testing.assert_allclose(got, np.concatenate([want[37:40], want]), rtol=0, atol=CLOSE)
            np.testing.assert_allclose(stages.rows(1, 40, TOKENS[40:60]), want[40:60], rtol=0, atol=CLOSE)


def test_a_step_that_fails_between_two_of_its_runs_leaves_no_rows(tiny: Path) -> None:
    from llama_cpp import llama_cpp as lib

    from shards.llamacpp import context

    decode, calls = lib.llama_decode, []

    def fail(*batch: Any) -> int:
        calls.append(1)
        return -3 if len(calls) == 3 else int(decode(*batch))

    want = WholeGguf(tiny).logits(TOKENS[:60])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "_MOST_ROWS", 16)
        with chain(tiny, (0, LAYERS), engine=ENGINE) as one:
            one.rows(1, 0, TOKENS[:20])
            patch.setattr(lib, "llama_decode", fail)
            calls.clear()
            with pytest.raises(StageError, match=r"CPU failed in a step of 60 rows: llama.cpp returned -3"):
                one.step([SequenceRows(1, 10, 40), SequenceRows(2, 0, 20)], TOKENS[100:160])
            np.testing.assert_allclose(one.rows(1, 10, TOKENS[10:60]), want[10:60], rtol=0, atol=CLOSE)
            np.testing.assert_allclose(one.rows(2, 0, TOKENS[:20]), want[:20], rtol=0, atol=CLOSE)


def test_a_hidden_state_that_does_not_come_is_an_error(tiny: Path) -> None:
    from llama_cpp import llama_cpp as lib

    first = load_stage(config(tiny, 0, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lib, "llama_decode", lambda *_: 0)
        with pytest.raises(StageError, match=r"layers 0-1: CPU failed in a step of 2 rows: llama.cpp gave 0 of 2 rows"):
            first.step(Batch((SequenceRows(1, 0, 2),), np.array([5, 6])))
    assert first.step(Batch((SequenceRows(1, 0, 2),), np.array([5, 6]))).shape == (2, 64)
    first.close()


def test_a_stage_that_nobody_uses_any_more_begins_like_a_new_one(smollm2_llamacpp_package: Path) -> None:
    """llama.cpp gives out cells behind the last ones, and what it computes depends on where they are."""

    def answer(stages: Chain) -> NDArray[np.float32]:
        return np.concatenate([stages.rows(9, past, TOKENS[past : past + 20]) for past in (0, 20, 40)])

    with chain(smollm2_llamacpp_package, (0, 30), engine=ENGINE, threads=1, mode="fast") as stages:
        fresh = answer(stages)
        stages.free(9)
        for sequence in (1, 2, 3):
            stages.rows(sequence, 0, TOKENS[:50])
        for sequence in (1, 3, 2):
            stages.free(sequence)
            stages.rows(4, 0, TOKENS[:7])
        stages.free(4)
        np.testing.assert_array_equal(answer(stages), fresh)


@pytest.fixture
def roomy(tiny: Path) -> Iterator[Chain]:
    with chain(tiny, (0, LAYERS), engine=ENGINE, kv_tokens=32 * (SEQUENCES + 1)) as loaded:
        yield loaded


def test_so_many_sequences_and_no_more(roomy: Chain) -> None:
    one = roomy
    assert one.stages[0].facts.sequences == SEQUENCES
    one.step([SequenceRows(s, 0, 1) for s in range(SEQUENCES - 1)], TOKENS[: SEQUENCES - 1])
    one.stages[0].step(Batch((SequenceRows(500, 0, 0),), np.zeros(0, np.int64)))
    with pytest.raises(CapacityError, match="1 more sequences were asked for, 0 of 128 are free"):
        one.rows(SEQUENCES, 0, TOKENS[:1])
    with pytest.raises(CapacityError, match="0 of 128 are free"):
        one.fork(1, SEQUENCES, 0)
    one.free(7)
    one.rows(SEQUENCES, 0, TOKENS[:1])
    with pytest.raises(StageError, match="sequence 7: the sequence is unknown"):
        one.rows(7, 1, TOKENS[:1])


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"mode": "exact"}, "f32"),
        ({"mode": "fast", "kv_precision": "f16"}, "f16"),
        ({"mode": "fast", "kv_precision": "f32"}, "f32"),
        ({"mode": "fast"}, "f16"),
    ],
)
def test_keys_and_values_are_kept_as_asked(tiny: Path, settings: dict[str, Any], kept: str) -> None:
    """A head of 16 has no 8 bits in llama.cpp: then it is f16, if nobody insists."""
    stage = load_stage(config(tiny, threads=1, **settings))
    facts = stage.facts
    stage.close()
    assert facts.properties["KV_CACHE_PRECISION"] == kept
    assert facts.properties["INFERENCE_NUM_THREADS"] == "1"
    assert (facts.engine, facts.device, facts.block, facts.kv_tokens) == (ENGINE, "CPU", 32, 256)


def test_eight_bits_that_cannot_be_are_refused_and_others_work(tiny: Path, smollm2_llamacpp_package: Path) -> None:
    with pytest.raises(StageError, match="8 bits only in groups of 32; a head has 16"):
        load_stage(config(tiny, mode="fast", kv_precision="u8"))
    got = []
    for edges in ((0, 30), (0, 15, 30)):
        with chain(smollm2_llamacpp_package, edges, engine=ENGINE, mode="fast", threads=1) as stages:
            assert {stage.facts.properties["KV_CACHE_PRECISION"] for stage in stages.stages} == {"q8_0"}
            got.append(rows_in_chunks(stages, TOKENS[:100], 33))
    np.testing.assert_array_equal(*got)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"device": "GPU"}, "llama.cpp stages run on the CPU, not on GPU"),
        ({"begins_after_attention": True}, "between two layers, not within one"),
        ({"ends_after_attention": True}, "between two layers, not within one"),
        ({"capture": True}, "do not give the hidden states"),
    ],
)
def test_what_these_stages_cannot_do_is_refused(tiny: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(StageError, match=said):
        load_stage(config(tiny, **settings))


def test_packages_without_the_backend_are_refused(tiny: Path, tiny_package: Path) -> None:
    with pytest.raises(PackageError, match=r"no llama.cpp backend.*--backend both"):
        load_stage(config(tiny_package))
    with pytest.raises(PackageError, match=r"the llama.cpp backend alone.*--engine llamacpp"):
        load_stage(config(tiny, engine="openvino-paged"))


def test_a_kv_cache_beyond_memory_is_refused(tiny: Path) -> None:
    with pytest.raises(CapacityError, match=r"a KV cache of \d+ tokens takes \d+ MiB, \d+ MiB are free"):
        load_stage(config(tiny, kv_tokens=10**10))


def test_a_stage_needs_only_its_own_bytes(smollm2_llamacpp_package: Path, tmp_path: Path) -> None:
    """Each stage from a copy of the package that has nothing but its pieces, the rest of the tensors zeroed."""
    whole = PackageStore(smollm2_llamacpp_package)
    spans = whole.manifest.llamacpp
    assert spans is not None
    tensors = (whole.folder / LLAMACPP_TENSORS).read_bytes()
    stages = []
    for first, end in ((0, 10), (10, 20), (20, 30)):
        store = PackageStore.create(tmp_path / f"{first}-{end}", whole.manifest)
        pieces = store.pieces_of_stage(first, end, ENGINE)
        assert {piece.path for piece in pieces} == {LLAMACPP_METADATA, LLAMACPP_TENSORS}
        for piece in pieces:
            store.write(piece, whole.read(piece))
        only = bytearray(len(tensors))
        for start, stop in spans.of_stage(first, end):
            only[start:stop] = tensors[start:stop]
        (store.folder / LLAMACPP_TENSORS).write_bytes(only)
        alone = {
            "files": tuple(entry for entry in store.manifest.files if entry.path.startswith("llamacpp")),
            "spans": manifests.WeightSpans.nothing(30),
        }
        manifests.write(store.folder, store.manifest.model_copy(update=alone))
        rehash(store.folder)
        stages.append(load_stage(config(store.folder, first, end, threads=1)))
    tokens = TOKENS[:40]
    np.testing.assert_array_equal(Chain(stages).rows(1, 0, tokens), WholeGguf(whole.folder).logits(tokens))
    middle = sum(piece.size for piece in whole.pieces_of_stage(10, 20, ENGINE))
    assert middle < 0.45 * len(tensors)  # no embedding, and the layers in whole pieces
    for stage in stages:
        stage.close()


def test_without_a_cache_nothing_stays(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    load_stage(config(tiny, 1, 3)).close()
    with pytest.raises(CapacityError):
        load_stage(config(tiny, 1, 3, kv_tokens=10**10))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"depth":4', '"depth":5', "of 4 layers, the model has 5"),
        ('"depth":4', '"depth":99999999999', "of 4 layers, the model has 99999999999"),
        ('"start":0', '"start":-1', "greater than or equal to 0"),
        ('"width":64', '"width":65', "of another model than the manifest describes"),
        ('"kind":4', '"kind":1', "is not of the type 1"),
        ('"shape":[64]', '"shape":[-64]', "greater than 0"),
        ('"shape":[64]', '"shape":[9223372036854775808,9]', "is to have 83010348331692982272 weights"),
        ('"size":256', '"size":18446744073709551615', "less than or equal to"),
    ],
)
def test_metadata_that_makes_no_sense_is_refused(tiny: Path, tmp_path: Path, old: str, new: str, said: str) -> None:
    package = Path(shutil.copytree(tiny, tmp_path / "package"))
    path = package / LLAMACPP_METADATA
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")
    content = manifests.read(package)
    sized = tuple(f.model_copy(update={"size": (package / f.path).stat().st_size}) for f in content.files)
    manifests.write(package, content.model_copy(update={"files": sized}))
    rehash(package)
    with pytest.raises(PackageError, match=said):
        load_stage(config(package))


def test_tensors_outside_the_stages_bytes_are_refused(tiny: Path, tmp_path: Path) -> None:
    package = Path(shutil.copytree(tiny, tmp_path / "package"))
    content = manifests.read(package)
    assert content.llamacpp is not None
    layers = (content.llamacpp.layers[1], *content.llamacpp.layers[1:])
    manifests.write(
        package, content.model_copy(update={"llamacpp": content.llamacpp.model_copy(update={"layers": layers})})
    )
    with pytest.raises(PackageError, match=r"the tensor blk\.0\.\S+ is not among the bytes of layers 0-0"):
        load_stage(config(package, 0, 1))


def test_loading_and_closing_keeps_no_memory(tiny: Path, tmp_path: Path) -> None:
    def load() -> None:
        stage = load_stage(config(tiny, 0, 2, kv_tokens=2**17), cache=tmp_path)
        stage.step(Batch((SequenceRows(1, 0, 3),), np.array([5, 6, 7])))
        stage.close()

    process = psutil.Process()
    for _ in range(3):
        load()
    before = process.memory_info().rss
    for _ in range(10):
        load()
    assert process.memory_info().rss - before < 64 * 2**20  # one KV cache alone is as much
