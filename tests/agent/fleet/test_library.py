from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fake_packages import make_package

from agent.fleet.bulk.library import Library
from shards.errors import PackageError
from shards.manifest import MANIFEST, PIECE_BYTES, WEIGHTS, Manifest
from shards.store import PackageStore


@pytest.fixture
def lent(tmp_path: Path) -> Manifest:
    return make_package(tmp_path / "lent", PIECE_BYTES + 5)


def test_finds_what_it_lends_and_what_it_made(tmp_path: Path, lent: Manifest) -> None:
    library = Library(tmp_path / "cache")
    assert library.store(lent.package_id) is None
    made = library.create(lent)
    assert made.folder == tmp_path / "cache" / lent.package_id
    assert library.create(lent) is made is library.store(lent.package_id)
    again = Library(tmp_path / "cache").store(lent.package_id)
    assert again is not None and again.manifest == lent
    assert library.lend(tmp_path / "lent").folder == tmp_path / "lent"
    found = library.store(lent.package_id)
    assert found is not None and found.folder == tmp_path / "lent"


def test_what_is_lent_is_never_written(tmp_path: Path, lent: Manifest) -> None:
    store = Library(tmp_path / "cache").lend(tmp_path / "lent")
    piece = store.pieces(WEIGHTS)[0]
    before = {path: path.read_bytes() for path in (tmp_path / "lent").rglob("*") if path.is_file()}
    with pytest.raises(PackageError, match="only lent"):
        store.write(piece, store.read(piece))
    with pytest.raises(PackageError, match="only lent"):
        store.repair([piece])
    assert {path: path.read_bytes() for path in (tmp_path / "lent").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("package_id", ["", "..", "../lent", "/", "x" * 64, "0" * 63, "0" * 64 + "/..", "A" * 64])
def test_only_ids_are_looked_for(tmp_path: Path, lent: Manifest, package_id: str) -> None:
    assert Library(tmp_path).store(package_id) is None


def test_a_package_under_another_name_is_not_it(tmp_path: Path, lent: Manifest) -> None:
    shutil.copytree(tmp_path / "lent", tmp_path / "cache" / ("0" * 64))
    assert Library(tmp_path / "cache").store("0" * 64) is None


def test_what_vanished_is_begun_again(tmp_path: Path, lent: Manifest) -> None:
    library = Library(tmp_path / "cache")
    store = library.create(lent)
    shutil.rmtree(store.folder)
    assert library.store(lent.package_id) is None
    assert library.create(lent).missing(store.all_pieces()) == store.all_pieces()


@pytest.mark.parametrize("damaged", [b"", b"{}", b"\0" * 100])
def test_a_damaged_manifest_is_replaced(tmp_path: Path, lent: Manifest, damaged: bytes) -> None:
    folder = Library(tmp_path / "cache").create(lent).folder
    (folder / MANIFEST).write_bytes(damaged)
    library = Library(tmp_path / "cache")
    assert library.store(lent.package_id) is None
    assert library.create(lent).manifest == lent
    assert PackageStore(folder).manifest == lent


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, lent: Manifest) -> None:
    (tmp_path / "cache").write_text("a file", "utf-8")
    with pytest.raises(PackageError, match="cannot be created") as caught:
        Library(tmp_path / "cache").create(lent)
    assert str(tmp_path / "cache") in str(caught.value)
