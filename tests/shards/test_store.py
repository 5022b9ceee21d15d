"""The store: pieces are verified as they arrive, holes take no disk, and damage is found and named."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards import manifest as manifests
from shards import sparse
from shards.errors import CapacityError, PackageError
from shards.loading import load_stage
from shards.manifest import GRAPH, PIECE_BYTES, WEIGHTS, FileEntry, Manifest, ModelFacts, WeightSpans
from shards.runtime import Batch, SequenceRows, StageConfig
from shards.store import PackageStore, Piece

SIZE = 4 * PIECE_BYTES + 1000
"""Five pieces, the last one short."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of two layers in random bytes. Read only."""
    folder = tmp_path_factory.mktemp("package")
    content = {GRAPH: b"<net/>", WEIGHTS: random.Random(0).randbytes(SIZE)}
    entries = []
    for path, data in content.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(data)
        pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
        hashes = tuple(hashlib.sha256(piece).hexdigest() for piece in pieces)
        entries.append(FileEntry(path=path, size=len(data), pieces=hashes))
    facts = ModelFacts(
        name="toy", architecture=None, layers=2, hidden_size=8, kv_heads=1, head_size=8, vocabulary=16,
        context_length=64, stop_tokens=(), weights="fp32",
    )  # fmt: skip
    spans = WeightSpans(
        shared=((0, 100),), embedding=(), layers=(((100, PIECE_BYTES + 1),), ((3 * PIECE_BYTES, SIZE),)), head=()
    )
    manifests.write(folder, Manifest(facts=facts, spans=spans, files=tuple(entries)))
    return folder


@pytest.fixture
def source(package: Path) -> PackageStore:
    return PackageStore(package)


@pytest.fixture
def node(source: PackageStore, tmp_path: Path) -> PackageStore:
    """A node's copy with nothing in it yet."""
    return PackageStore.create(tmp_path / "node", source.manifest)


def copy(source: PackageStore, node: PackageStore, pieces: tuple[Piece, ...]) -> None:
    for piece in pieces:
        node.write(piece, source.read(piece))


def weights(store: PackageStore) -> Path:
    return store.folder / WEIGHTS


def test_a_stage_needs_the_pieces_its_ranges_touch(source: PackageStore) -> None:
    def needed(first: int, end: int) -> list[int]:
        return [piece.index for piece in source.pieces_of_stage(first, end) if piece.path == WEIGHTS]

    assert needed(0, 1) == [0, 1]
    assert needed(1, 2) == [0, 3, 4]
    assert needed(0, 2) == [0, 1, 3, 4]
    assert source.pieces(WEIGHTS)[-1] == Piece(WEIGHTS, 4, 4 * PIECE_BYTES, SIZE)


def test_a_package_as_exported_lacks_nothing(source: PackageStore) -> None:
    assert source.missing(source.all_pieces()) == ()
    reports: list[tuple[float, float]] = []
    source.verify(source.all_pieces(), lambda what, done, total: reports.append((done, total)))
    assert reports[-1] == (SIZE + 6, SIZE + 6)


def test_a_node_fetches_only_its_own_pieces(source: PackageStore, node: PackageStore) -> None:
    wanted = node.pieces_of_stage(1, 2)
    assert node.missing(wanted) == wanted
    copy(source, node, wanted)
    assert node.missing(wanted) == ()
    node.verify(wanted)
    assert node.missing(node.pieces_of_stage(0, 2)) == (Piece(WEIGHTS, 1, PIECE_BYTES, 2 * PIECE_BYTES),)
    assert weights(node).stat().st_size == SIZE
    assert sparse.allocated_bytes(weights(node)) < SIZE - PIECE_BYTES  # the hole of piece 1 and 2 takes no disk


def test_a_complete_copy_is_the_package(source: PackageStore, node: PackageStore) -> None:
    copy(source, node, node.all_pieces())
    assert weights(node).read_bytes() == weights(source).read_bytes()
    files = {path.relative_to(node.folder).as_posix() for path in node.folder.rglob("*") if path.is_file()}
    assert files == {manifests.MANIFEST, GRAPH, WEIGHTS}


def test_wrong_bytes_are_never_accepted(source: PackageStore, node: PackageStore) -> None:
    first, second = node.pieces(WEIGHTS)[:2]
    flipped = bytearray(source.read(first))
    flipped[1000] ^= 1
    for wrong in (bytes(flipped), source.read(second), source.read(first)[:-1], b""):
        with pytest.raises(PackageError, match=r"openvino/weights.bin: what arrived for piece 0 "):
            node.write(first, wrong)
    assert node.missing((first,)) == (first,)
    assert sparse.allocated_bytes(weights(node)) < PIECE_BYTES


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(5)), count=st.integers(0, 5))
def test_resumes_whatever_arrived_before(
    package: Path, tmp_path_factory: pytest.TempPathFactory, order: list[int], count: int
) -> None:
    source = PackageStore(package)
    folder = tmp_path_factory.mktemp("node")
    pieces = source.pieces(WEIGHTS)
    copy(source, PackageStore.create(folder, source.manifest), tuple(pieces[index] for index in order[:count]))
    again = PackageStore.create(folder, source.manifest)
    assert {piece.index for piece in again.missing(pieces)} == set(order[count:])


def test_a_kill_loses_at_most_the_piece_in_flight(source: PackageStore, tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from shards.store import PackageStore\n"
        "source = PackageStore(Path(sys.argv[1]))\n"
        "node = PackageStore.create(Path(sys.argv[2]), source.manifest)\n"
        "for count, piece in enumerate(source.pieces_of_stage(0, 2)):\n"
        "    if count == 3: os._exit(9)\n"
        "    node.write(piece, source.read(piece))\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(source.folder), str(tmp_path / "node")], check=False)
    assert killed.returncode == 9
    node = PackageStore.create(tmp_path / "node", source.manifest)
    wanted = node.pieces_of_stage(0, 2)
    assert node.missing(wanted) == wanted[3:]
    copy(source, node, node.missing(wanted))
    node.verify(wanted)


def test_a_stage_runs_from_its_own_pieces(smollm2_package: Path, tmp_path: Path) -> None:
    source = PackageStore(smollm2_package)
    node = PackageStore.create(tmp_path / "node", source.manifest)
    copy(source, node, node.pieces_of_stage(10, 20))
    assert sparse.allocated_bytes(weights(node)) < weights(source).stat().st_size / 2
    hidden = np.random.default_rng(0).normal(size=(20, 576)).astype(np.float32)
    outputs = []
    for folder in (source.folder, node.folder):
        stage = load_stage(
            StageConfig(package=folder, first_layer=10, end_layer=20, mode="exact", kv_tokens=64, threads=1)
        )
        outputs.append(stage.step(Batch((SequenceRows(0, 0, 20),), hidden)).copy())
        stage.close()
    assert np.array_equal(outputs[0], outputs[1])
    with pytest.raises(PackageError, match="are not here yet"):
        load_stage(StageConfig(package=node.folder, first_layer=9, end_layer=20, mode="exact"))


def test_another_package_in_the_folder_is_refused(source: PackageStore, node: PackageStore) -> None:
    other = source.manifest.model_copy(update={"files": source.manifest.files[:1]})
    with pytest.raises(PackageError, match="holds another package"):
        PackageStore.create(node.folder, other)


def test_what_has_not_arrived_is_not_loaded(source: PackageStore, node: PackageStore) -> None:
    copy(source, node, node.pieces_of_stage(0, 1))
    node.check(node.pieces_of_stage(0, 1))
    with pytest.raises(PackageError, match=r"2 of 4 pieces are not here yet, the first at bytes 12582912-16777215"):
        node.check(node.pieces_of_stage(1, 2))


def test_a_flipped_bit_is_named(source: PackageStore, node: PackageStore) -> None:
    copy(source, node, node.all_pieces())
    flip(node, 3 * PIECE_BYTES + 5)
    flip(node, 4 * PIECE_BYTES + 5)
    node.verify(node.pieces_of_stage(0, 1))  # the damage is in the other layer
    with pytest.raises(PackageError, match=r"bytes 12582912-16777215 \(piece 3\).*; 1 more pieces") as caught:
        node.verify(node.pieces_of_stage(1, 2))
    assert caught.value.where == str(weights(node))


def test_repair_forgets_what_is_damaged_and_that_alone(source: PackageStore, node: PackageStore) -> None:
    first, second, third = node.pieces(WEIGHTS)[:3]
    copy(source, node, (first, second))
    flip(node, 5)
    assert node.repair((first, second, third)) == (first,)
    assert set(node.missing(node.pieces(WEIGHTS))) == set(node.pieces(WEIGHTS)) - {second}
    copy(source, node, node.missing(node.all_pieces()))
    flip(node, 2 * PIECE_BYTES)
    flip(node, SIZE - 1)
    reports: list[tuple[float, float]] = []
    damaged = node.repair(node.all_pieces(), lambda what, done, total: reports.append((done, total)))
    assert damaged == (third, node.piece(WEIGHTS, 4)) == node.missing(node.all_pieces())
    assert reports[-1] == (SIZE + 6, SIZE + 6)
    copy(source, node, damaged)
    node.verify(node.all_pieces())
    assert not list(node.folder.rglob("*.pieces*"))


def flip(store: PackageStore, place: int) -> None:
    with weights(store).open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 0x10]))


def test_parts_of_pieces_are_read(source: PackageStore) -> None:
    last = source.piece(WEIGHTS, 4)
    assert source.read(last, 900) == source.read(last)[900:]
    assert source.read(last, 10, 20) == source.read(last)[10:30]
    for index in (-1, 5):
        with pytest.raises(PackageError, match=f"there is no piece {index}, the file has 5"):
            source.piece(WEIGHTS, index)


def test_a_read_only_package_is_not_written(package: Path) -> None:
    store = PackageStore(package, read_only=True)
    (piece,) = store.pieces(GRAPH)
    for write in (lambda: store.write(piece, b"<net/>"), lambda: store.repair([piece])):
        with pytest.raises(PackageError, match="only lent"):
            write()


def test_truncated_weights_are_named_and_fetched_again(source: PackageStore, node: PackageStore) -> None:
    copy(source, node, node.all_pieces())
    os.truncate(weights(node), SIZE - 1)
    with pytest.raises(PackageError, match=f"has {SIZE - 1} bytes, the manifest says {SIZE}"):
        node.check(node.pieces_of_stage(0, 1))
    wanted = node.pieces(WEIGHTS)
    assert node.missing(wanted) == wanted
    copy(source, node, wanted)
    node.verify(node.all_pieces())


def test_vanished_files_are_named(source: PackageStore, node: PackageStore) -> None:
    copy(source, node, node.all_pieces())
    (node.folder / GRAPH).unlink()
    with pytest.raises(PackageError, match="the file is gone") as caught:
        node.check(node.pieces_of_stage(0, 1))
    assert caught.value.where == str(node.folder / GRAPH)
    with pytest.raises(PackageError, match="cannot be read"):
        node.read(node.pieces(GRAPH)[0])


def test_a_full_disk_keeps_what_is_there(
    source: PackageStore, node: PackageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = node.pieces(WEIGHTS)[:2]
    copy(source, node, (first,))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CapacityError, match=f"{PIECE_BYTES} bytes wanted, [0-9]+ free"):
            node.write(second, source.read(second))
    assert node.missing((first, second)) == (second,)
    node.verify((first,))


def test_a_folder_that_cannot_be_written_is_named(source: PackageStore, tmp_path: Path) -> None:
    (tmp_path / "node").write_text("a file", "utf-8")
    with pytest.raises(PackageError, match="cannot be created") as caught:
        PackageStore.create(tmp_path / "node", source.manifest)
    assert caught.value.where == str(tmp_path / "node")
    assert "Errno" not in caught.value.what and "edge-agent doctor" in (caught.value.hint or "")
