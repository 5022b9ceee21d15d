"""A draft package with a trimmed head: what it keeps, that it is right, and what it may be used for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packages import rehash
from tiny_gguf import vocabulary, write_tiny_gguf
from typer.testing import CliRunner

from agent.cli.app import app
from exporters import draft_vocabulary, verify
from exporters.draft_vocabulary import DraftWish, choose
from exporters.export import Export, export
from pipeline.running import RunningModel, RunOptions
from shards import draft_vocabulary as shards_draft_vocabulary
from shards import manifest as manifests
from shards.errors import ConfigurationError, ExportError, PackageError
from shards.loading import load_stage
from shards.manifest import DRAFT_VOCABULARY
from shards.runtime import Batch, SequenceRows, StageConfig
from shards.store import PackageStore

SIZE = 40


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("draft-source") / "tiny.gguf", layers=2)


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("counts") / "counts.npz"
    np.savez(path, counts=np.random.default_rng(0).integers(0, 1000, len(vocabulary())))
    return path


@pytest.fixture(scope="module")
def made(source: Path, counts: Path, tmp_path_factory: pytest.TempPathFactory) -> Export:
    """A draft of SIZE tokens. Read only."""
    return export(
        str(source), tmp_path_factory.mktemp("drafts") / "draft", weights="keep", draft=DraftWish(SIZE, counts)
    )


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(str(source), tmp_path_factory.mktemp("wholes") / "whole", weights="keep", verified=False).package


def test_it_keeps_the_most_frequent_tokens(made: Export, counts: Path) -> None:
    facts = made.manifest.facts
    ids = shards_draft_vocabulary.token_ids(made.package)
    assert ids is not None
    assert (facts.draft_vocabulary, facts.vocabulary, facts.logits) == (SIZE, len(vocabulary()), SIZE)
    assert set(facts.stop_tokens) <= set(ids.tolist())
    stored = np.load(counts)["counts"]
    left_out = np.setdiff1d(np.arange(len(stored)), ids)
    assert stored[left_out].max() <= stored[np.setdiff1d(ids, facts.stop_tokens)].min()
    assert made.manifest.source["draft_vocabulary"].startswith(f"{SIZE} of {len(vocabulary())} tokens")
    assert made.verification is not None
    assert made.verification.passed
    PackageStore(made.package).verify(PackageStore(made.package).all_pieces())


def test_a_stage_gives_the_whole_ones_columns_and_embeds_all_tokens(made: Export, whole: Path) -> None:
    tokens = np.arange(len(vocabulary()))
    outputs = []
    for package in (made.package, whole):
        stage = load_stage(StageConfig(package=package, first_layer=0, end_layer=2, mode="exact", kv_tokens=1024))
        assert stage.facts.vocabulary == len(vocabulary())
        outputs.append(stage.step(Batch((SequenceRows(0, 0, len(tokens), len(tokens)),), tokens)).copy())
        assert stage.step(Batch((SequenceRows(0, 0, 1, 0),), tokens[:1])).shape[0] == 0
        stage.close()
    ids = shards_draft_vocabulary.token_ids(made.package)
    assert np.abs(outputs[0] - outputs[1][:, ids]).max() <= 1e-5 * np.abs(outputs[1]).max()


def test_a_wrong_map_fails_the_verification(
    source: Path, counts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = draft_vocabulary._write_trimmed
    monkeypatch.setattr(
        draft_vocabulary, "_write_trimmed", lambda source, ids, graph: right(source, np.arange(len(ids)), graph)
    )
    with pytest.raises(ExportError, match="differs from the whole one"):
        export(str(source), tmp_path / "draft", weights="keep", draft=DraftWish(SIZE, counts))
    assert not any(tmp_path.iterdir())


def test_it_is_not_served_by_itself(made: Export) -> None:
    with pytest.raises(PackageError, match=f"{SIZE} of {len(vocabulary())} tokens.*a draft and nothing else"):
        RunningModel.open(made.package, RunOptions())
    result = CliRunner().invoke(app, ["serve", str(made.package), "--port", "0", "--control-port", "0"])
    assert isinstance(result.exception, PackageError)


def test_its_ids_are_part_of_what_it_is(made: Export, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(made.package, tmp_path / "copy")
    needed = {piece.path for piece in PackageStore(copy).pieces_of_stage(0, 2)}
    assert DRAFT_VOCABULARY in needed
    ids = np.frombuffer((copy / DRAFT_VOCABULARY).read_bytes(), "<i4").copy()
    ids[:2] = ids[1::-1]
    (copy / DRAFT_VOCABULARY).write_bytes(ids.tobytes())
    with pytest.raises(PackageError, match="piece"):
        PackageStore(copy).verify(PackageStore(copy).pieces_of_stage(0, 2))
    rehash(copy)
    with pytest.raises(PackageError, match="not ascending"):
        shards_draft_vocabulary.token_ids(copy)
    raw = json.loads((copy / manifests.MANIFEST).read_text("utf-8"))
    raw["facts"]["draft_vocabulary"] = SIZE - 1
    (copy / manifests.MANIFEST).write_text(json.dumps(raw), "utf-8")
    with pytest.raises(PackageError, match="the manifest is damaged"):
        manifests.read(copy)


def test_a_text_is_counted_with_the_models_tokenizer(source: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sat on the mat\n" * 50, "utf-8")
    made = export(str(source), tmp_path / "draft", weights="keep", draft=DraftWish(SIZE, corpus))
    assert "100.00% of corpus.txt" in made.manifest.source["draft_vocabulary"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("corpus.txt", b"\xff\xfe\x00", "cannot be read as UTF-8"),
        ("corpus.txt", b"", "no tokens"),
        ("corpus.npz", b"not a zip", "cannot be read"),
        ("corpus.npz", {"other": np.ones(3, np.int64)}, "no array 'counts'"),
        ("corpus.npz", {"counts": np.ones(3, np.int64)}, "counts 3 tokens, the model has"),
        ("corpus.npz", {"counts": np.ones((3, 3), np.int64)}, "not a list of counts"),
        ("corpus.npz", {"counts": np.ones(3)}, "not a list of counts"),
        ("corpus.npz", {"counts": np.array([1, -1])}, "not a list of counts"),
        ("corpus.npz", {"counts": np.zeros(len(vocabulary()), np.int64)}, "no tokens"),
        ("corpus.npz", {"counts": np.array([{}], object)}, "cannot be read"),
    ],
)
def test_a_corpus_that_is_none_is_refused(
    source: Path, tmp_path: Path, name: str, content: bytes | dict[str, np.ndarray], says: str
) -> None:
    corpus = tmp_path / name
    if isinstance(content, bytes):
        corpus.write_bytes(content)
    else:
        np.savez(corpus, **content)
    with pytest.raises(ExportError, match=says):
        export(str(source), tmp_path / "draft", weights="keep", draft=DraftWish(SIZE, corpus))
    assert list(tmp_path.iterdir()) == [corpus]


@pytest.mark.parametrize("size", [1, len(vocabulary()), 10**9])
def test_a_size_out_of_range_is_refused(source: Path, counts: Path, tmp_path: Path, size: int) -> None:
    with pytest.raises(ExportError, match="tokens were asked for; there are"):
        export(str(source), tmp_path / "draft", weights="keep", draft=DraftWish(size, counts))


def test_a_draft_is_not_split(source: Path, counts: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be split"):
        export(str(source), tmp_path / "draft", weights="keep", split=(1, 1), draft=DraftWish(SIZE, counts))


def test_a_corpus_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        DraftWish(SIZE, tmp_path / "nothing.txt")


@pytest.mark.parametrize("option", [["--draft-vocabulary", "40"], ["--corpus", "x.txt"]])
def test_the_options_go_together(option: list[str]) -> None:
    result = CliRunner().invoke(app, ["export", "x.gguf", "-o", "y", *option])
    assert result.exit_code == 2
    assert "go together" in result.output


@given(st.lists(st.integers(0, 5), min_size=4, max_size=60), st.data())
def test_choosing_keeps_stop_tokens_and_the_most_frequent(counts: list[int], data: st.DataObject) -> None:
    stops = data.draw(st.sets(st.integers(0, len(counts) - 1), max_size=2))
    size = data.draw(st.integers(len(stops) + 1, len(counts) - 1))
    kept = choose(np.array(counts), size, tuple(stops))
    ids = kept.ids.tolist()
    assert ids == sorted(set(ids))
    assert len(ids) == size
    assert stops <= set(ids)
    least = min(counts[i] for i in ids if i not in stops)
    assert all(counts[i] <= least for i in range(len(counts)) if i not in ids)
    assert kept.coverage == pytest.approx(sum(counts[i] for i in ids) / max(sum(counts), 1))


def test_a_whole_package_has_no_map(whole: Path) -> None:
    assert shards_draft_vocabulary.token_ids(whole) is None
    assert verify.halves(whole, 2)[1].end_layer == 2
