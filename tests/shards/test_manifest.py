"""The manifest: what it refuses, and how byte ranges are merged."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shards import manifest as manifests
from shards.errors import PackageError
from shards.manifest import FileEntry, Manifest, ModelFacts, StageOf, WeightSpans, merge

FACTS = ModelFacts(
    name="toy", architecture=None, layers=2, hidden_size=8, kv_heads=1, head_size=8, vocabulary=16,
    context_length=64, stop_tokens=(2,), weights="fp32",
)  # fmt: skip
SPANS = WeightSpans(shared=((0, 4),), embedding=((4, 100),), layers=(((100, 200),), ((200, 300),)), head=((4, 100),))
WEIGHTS = FileEntry(path=manifests.WEIGHTS, size=300, pieces=("ab",))


def toy(**changes: Any) -> Manifest:
    return Manifest(**{"facts": FACTS, "spans": SPANS, "files": (WEIGHTS,), **changes})


def test_survives_writing_and_reading(tmp_path: Path) -> None:
    manifest = toy(stage=StageOf(package_id="x", first_layer=0, end_layer=1), source={"kind": "test"})
    manifests.write(tmp_path, manifest)
    assert manifests.read(tmp_path) == manifest
    assert [path.name for path in tmp_path.iterdir()] == [manifests.MANIFEST]


def test_stage_ranges_include_the_ends_only_at_the_ends() -> None:
    assert SPANS.of_stage(0, 1) == ((0, 200),)
    assert SPANS.of_stage(1, 2) == ((0, 100), (200, 300))
    assert SPANS.all() == ((0, 300),)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "cannot be read"),
        ("[]", "no format number"),
        ('{"format": "1"}', "no format number"),
        ('{"format": 2}', "format 2, this edge-agent reads up to 1"),
        ('{"format": 1}', "damaged: facts"),
        ("\xff", "damaged|cannot be read|format"),
    ],
)
def test_refuses_what_is_no_manifest(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / manifests.MANIFEST).write_text(content, "latin-1")
    with pytest.raises(PackageError, match=words) as caught:
        manifests.read(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert caught.value.hint


def test_a_folder_without_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="not a model package") as caught:
        manifests.read(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in str(caught.value)


@pytest.mark.parametrize("path", ["../evil", "/etc/passwd", "a//b", "a/./b", "C:/windows", "..\\evil", ""])
def test_files_outside_the_package_are_refused(path: str) -> None:
    with pytest.raises(ValidationError, match="not a path inside"):
        FileEntry(path=path, size=1, pieces=("ab",))


def test_a_damaged_manifest_names_the_field(tmp_path: Path) -> None:
    raw = json.loads(toy().model_dump_json())
    raw["facts"]["layers"] = -1
    (tmp_path / manifests.MANIFEST).write_text(json.dumps(raw), "utf-8")
    with pytest.raises(PackageError, match=r"facts\.layers"):
        manifests.read(tmp_path)


def test_counts_that_do_not_agree_are_refused() -> None:
    with pytest.raises(ValidationError, match="have 1 pieces, not 2"):
        FileEntry(path="a", size=300, pieces=("ab", "cd"))
    with pytest.raises(ValidationError, match="model has 3 layers, spans of 2"):
        toy(facts=FACTS.model_copy(update={"layers": 3}))
    with pytest.raises(ValidationError, match="not in the weights, which have 299"):
        toy(files=(FileEntry(path=manifests.WEIGHTS, size=299, pieces=("ab",)),))


def test_the_id_names_the_content_and_nothing_else() -> None:
    assert toy().package_id == toy(source={"path": "elsewhere"}).package_id
    changed = WEIGHTS.model_copy(update={"pieces": ("cd",)})
    others = [
        toy(files=(changed,)),
        toy(facts=FACTS.model_copy(update={"chat_template": "{{ messages }}"})),
        toy(spans=toy().spans.model_copy(update={"layers": toy().spans.layers[::-1]})),
        toy(stage=StageOf(package_id="x", first_layer=1, end_layer=2)),
    ]
    assert len({toy().package_id, *(other.package_id for other in others)}) == 5
    files = (WEIGHTS, FileEntry(path="a", size=0, pieces=()))
    assert toy(files=files).package_id == toy(files=files[::-1]).package_id


def test_layers_that_are_not_there_are_refused(tmp_path: Path) -> None:
    toy().check_layers(0, 2, where=tmp_path)
    for first, end in ((0, 3), (1, 1), (-1, 1)):
        with pytest.raises(PackageError, match="the model has 0-2"):
            toy().check_layers(first, end, where=tmp_path)
    stage = toy(stage=StageOf(package_id="x", first_layer=1, end_layer=2))
    stage.check_layers(1, 2, where=tmp_path)
    with pytest.raises(PackageError, match="stage of layers 1-2, 0-2 were asked for"):
        stage.check_layers(0, 2, where=tmp_path)


def test_what_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / manifests.MANIFEST).write_text("[" * 100_000, "utf-8")
    with pytest.raises(PackageError, match="the manifest cannot be read"):
        manifests.read(tmp_path)


def test_an_unlisted_file_is_named() -> None:
    with pytest.raises(PackageError, match="lists no tokenizer"):
        toy().file(manifests.TOKENIZER)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda pair: (pair[0], sum(pair)))))
def test_merging_keeps_exactly_the_bytes(spans: list[tuple[int, int]]) -> None:
    merged = merge(spans)
    assert {byte for span in merged for byte in range(*span)} == {byte for span in spans for byte in range(*span)}
    assert all(end < start for (_, end), (start, _) in pairwise(merged))
