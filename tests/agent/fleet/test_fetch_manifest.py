"""A manifest comes from whoever has it, and only the one that was asked for is taken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from bulk_fleet import BulkFleet
from fake_packages import make_package

from agent.fleet.bulk.bulk_client import Source
from agent.fleet.bulk.bulk_messages import Answer, encode
from agent.fleet.bulk.fetch import FetchCancelledError, fetch_manifest
from pipeline.link import KeyPair
from shards import manifest as manifests
from shards.errors import PackageError
from shards.manifest import PIECE_BYTES


@pytest.fixture
def package(tmp_path: Path) -> Path:
    make_package(tmp_path / "toy", PIECE_BYTES + 1000)
    return tmp_path / "toy"


@pytest.fixture
def fleet() -> Iterator[BulkFleet]:
    fleet = BulkFleet()
    yield fleet
    fleet.close()


@pytest.mark.parametrize("what", ["files", "spans", "facts"])
def test_no_source_can_substitute_a_model(fleet: BulkFleet, package: Path, what: str) -> None:
    """A false manifest under the right id: whatever of it differs, it is not taken."""
    manifest = manifests.read(package)
    files = tuple(entry.model_copy(update={"pieces": entry.pieces[::-1]}) for entry in manifest.files)
    spans = manifest.spans.model_copy(update={"layers": manifest.spans.layers[::-1]})
    facts = manifest.facts.model_copy(update={"chat_template": "{{ something_else }}"})
    changes = {"files": files, "spans": spans, "facts": facts}
    answer = manifest.model_copy(update={what: changes[what]}).model_dump_json().encode()
    false = fleet.impose(lambda request: [encode(Answer(number=request.number)), answer], "liar")
    with pytest.raises(PackageError, match=r"liar .*it sent the manifest of another package"):
        fetch_manifest(manifest.package_id, [false], fleet.keys)
    true = fleet.serve(package, "honest")
    assert fetch_manifest(manifest.package_id, [false, true], fleet.keys) == manifest


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"{", "cannot be read"),
        (b"[" * 10**6, "cannot be read"),
        (b"{}", "no format number"),
        (b'{"format": 1000}', "reads up to"),
        (b'{"format": 1, "files": [{"path": "../x", "size": 0, "pieces": []}]}', "damaged"),
    ],
)
def test_what_is_no_manifest_is_not_taken(fleet: BulkFleet, answer: bytes, why: str) -> None:
    false = fleet.impose(lambda request: [encode(Answer(number=request.number)), answer])
    with pytest.raises(PackageError, match=f"impostor .*{why}"):
        fetch_manifest("0" * 64, [false], fleet.keys)


def test_nobody_has_it(fleet: BulkFleet, package: Path) -> None:
    source = fleet.serve(package, "office")
    with pytest.raises(PackageError, match=r"nobody sends the manifest \(office .*does not have the package"):
        fetch_manifest("0" * 64, [source], fleet.keys)
    stranger = Source(KeyPair.new().public, "attic", "127.0.0.1", source.port)
    nowhere = Source(KeyPair.new().public, "cellar", "not an address", 1)
    with pytest.raises(PackageError, match=r"attic .*: no answer for 1 s; cellar .*: this is no address"):
        fetch_manifest(manifests.read(package).package_id, [stranger, nowhere], fleet.keys, stall_seconds=1.0)


def test_cancelling(fleet: BulkFleet, package: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(FetchCancelledError):
        fetch_manifest(manifests.read(package).package_id, [fleet.serve(package)], fleet.keys, cancel=cancel)
