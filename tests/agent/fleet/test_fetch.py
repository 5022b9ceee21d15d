"""Fetching over real sockets from sources that are good, slow, false, gone or partial."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bulk_fleet import BulkFleet
from eventually import eventually
from fake_packages import LAYERS, make_package

from agent.fleet.bulk.bulk_client import Source
from agent.fleet.bulk.bulk_messages import Answer, Request, WantSlice, encode, pack_held
from agent.fleet.bulk.bulk_server import BulkServer
from agent.fleet.bulk.fetch import SMALL_SLICE_BYTES, FetchCancelledError, fetch, fetch_manifest
from agent.fleet.bulk.library import Library
from agent.fleet.bulk.pace import Pace
from pipeline.link import KeyPair
from shards import manifest as manifests
from shards import sparse
from shards.errors import CapacityError, PackageError
from shards.manifest import GRAPH, PIECE_BYTES, WEIGHTS
from shards.store import PackageStore, Piece

SIZE = 8 * PIECE_BYTES + 1000
"""Nine pieces, the last one short."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    folder = tmp_path_factory.mktemp("packages") / "toy"
    make_package(folder, SIZE)
    return folder


@pytest.fixture
def fleet() -> Iterator[BulkFleet]:
    fleet = BulkFleet()
    yield fleet
    fleet.close()


@pytest.fixture
def node(package: Path, tmp_path: Path) -> PackageStore:
    """This node's copy, with nothing in it yet."""
    return Library(tmp_path / "node").create(PackageStore(package).manifest)


class Reports:
    """Notes progress, and does something once when it has come to so many bytes."""

    def __init__(self, at: float = float("inf"), do: Callable[[], object] = lambda: None) -> None:
        self.seen: list[tuple[str, float, float]] = []
        self._at, self._do = at, do

    def __call__(self, what: str, done: float, total: float) -> None:
        self.seen.append((what, done, total))
        if done >= self._at:
            self._at = float("inf")
            self._do()


def copy_of(package: Path, folder: Path) -> Path:
    """A copy that may be changed."""
    make_package(folder, SIZE)
    assert manifests.read(folder).package_id == manifests.read(package).package_id
    return folder


def flip(store: PackageStore, place: int) -> None:
    with (store.folder / WEIGHTS).open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def slow_down(server: BulkServer, bytes_per_second: float) -> None:
    server.pace.rate = 10 * bytes_per_second
    server.set_busy(True)


def test_a_whole_package(fleet: BulkFleet, package: Path, tmp_path: Path) -> None:
    source = fleet.serve(package)
    package_id = PackageStore(package).manifest.package_id
    node = Library(tmp_path / "node").create(fetch_manifest(package_id, [source], fleet.keys))
    reports = Reports()
    fetch(node, node.all_pieces(), [source], fleet.keys, progress=reports)
    for path in (GRAPH, WEIGHTS):
        assert (node.folder / path).read_bytes() == (package / path).read_bytes()
    assert {p.name for p in node.folder.rglob("*") if p.is_file()} == {"manifest.json", "graph.xml", "weights.bin"}
    assert [done == total == SIZE + 6 for _, done, total in reports.seen].count(True) == 1
    assert reports.seen[-1][0].startswith("fetching, ") and reports.seen[-1][0].endswith(" MB/s")
    fetch(node, node.all_pieces(), [], fleet.keys)  # nobody is needed any more


def test_a_stage_fetches_its_own_pieces(fleet: BulkFleet, package: Path, node: PackageStore) -> None:
    wanted, source, reports = node.pieces_of_stage(1, 2), fleet.serve(package), Reports()
    fetch(node, wanted + wanted, [source, source], fleet.keys, progress=reports)  # each counts once
    assert reports.seen[-1][1:] == (sum(piece.size for piece in wanted),) * 2
    node.verify(wanted)
    assert set(node.missing(node.all_pieces())) == set(node.all_pieces()) - set(wanted)
    assert sparse.allocated_bytes(node.folder / WEIGHTS) <= sum(piece.size for piece in wanted) + PIECE_BYTES // 2


def test_several_sources_share_the_work(fleet: BulkFleet, package: Path, node: PackageStore, tmp_path: Path) -> None:
    """Of each piece only one source has it, and one source has nothing."""
    original, sources = PackageStore(package), []
    for name, parts in (("a", (0, 2)), ("b", (2, LAYERS)), ("empty", (0, 0))):
        library, keys = Library(tmp_path / name), KeyPair.new()
        store = library.create(original.manifest)
        for piece in store.all_pieces() if name != "empty" else ():
            layer = piece.start * LAYERS // SIZE
            if parts[0] <= layer < parts[1]:
                store.write(piece, original.read(piece))
        server = fleet.servers[name] = BulkServer(keys, lambda *_: True, library, host="127.0.0.1")
        sources.append(Source(keys.public, name, "127.0.0.1", server.port))
    fetch(node, node.all_pieces(), sources, fleet.keys)
    node.verify(node.all_pieces())


KILLED = """
import json, sys
from pathlib import Path
from agent.fleet.bulk.bulk_client import Source
from agent.fleet.bulk.fetch import fetch
from agent.fleet.bulk.library import Library
from pipeline.link import KeyPair
order = json.load(sys.stdin)
store = Library(Path(order["library"])).store(order["package_id"])
fetch(store, store.all_pieces(), [Source(*order["source"])], KeyPair.model_validate(order["keys"]))
"""


def test_resumes_after_a_kill(fleet: BulkFleet, package: Path, node: PackageStore) -> None:
    source = fleet.serve(package)
    slow_down(fleet.servers["kitchen"], 8e6)
    order = {
        "library": str(node.folder.parent), "package_id": node.folder.name, "keys": fleet.keys.model_dump(),
        "source": [source.key, source.name, source.address, source.port],
    }  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(json.dumps(order).encode())
    process.stdin.close()
    deadline = time.monotonic() + 90
    while len(node.missing(node.all_pieces())) > 6:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    assert process.wait(90) != 0
    fleet.servers["kitchen"].set_busy(False)
    left = node.missing(node.all_pieces())
    assert 0 < len(left) <= 6
    reports = Reports()
    fetch(node, node.all_pieces(), [source], fleet.keys, progress=reports)
    assert reports.seen[-1][1] == sum(piece.size for piece in left)  # and not what was there
    node.verify(node.all_pieces())


def test_a_flipped_byte_is_found_and_only_its_piece_fetched(
    fleet: BulkFleet, package: Path, node: PackageStore
) -> None:
    source = fleet.serve(package)
    fetch(node, node.all_pieces(), [source], fleet.keys)
    flip(node, 5 * PIECE_BYTES + 77)
    with pytest.raises(PackageError, match="piece 5"):
        node.verify(node.all_pieces())
    damaged = node.piece(WEIGHTS, 5)
    assert node.repair(node.all_pieces()) == (damaged,)
    assert node.missing(node.all_pieces()) == (damaged,)
    reports = Reports()
    fetch(node, node.all_pieces(), [source], fleet.keys, progress=reports)
    assert reports.seen[-1][2] == damaged.size
    node.verify(node.all_pieces())
    assert node.repair(node.all_pieces()) == ()


def test_a_file_that_vanished_is_fetched_again(fleet: BulkFleet, package: Path, node: PackageStore) -> None:
    source = fleet.serve(package)
    fetch(node, node.all_pieces(), [source], fleet.keys)
    (node.folder / WEIGHTS).unlink()
    assert node.repair(node.all_pieces()) == ()
    fetch(node, node.all_pieces(), [source], fleet.keys)
    node.verify(node.all_pieces())


def test_a_source_with_wrong_bytes_is_dropped(
    fleet: BulkFleet, package: Path, node: PackageStore, tmp_path: Path
) -> None:
    liar = copy_of(package, tmp_path / "liar" / "package")
    for place in range(0, SIZE, PIECE_BYTES):
        flip(PackageStore(liar), place)
    false, true = fleet.serve(liar, "liar"), fleet.serve(package, "honest")
    fetch(node, node.all_pieces(), [false, true], fleet.keys)
    node.verify(node.all_pieces())


def test_wrong_bytes_alone_are_an_error_that_names_the_source(
    fleet: BulkFleet, package: Path, node: PackageStore, tmp_path: Path
) -> None:
    liar = copy_of(package, tmp_path / "liar" / "package")
    flip(PackageStore(liar), 3 * PIECE_BYTES)
    source = fleet.serve(liar, "liar")
    with pytest.raises(PackageError, match=r"liar \(127.0.0.1:\d+\): it sent wrong bytes for piece 3 of") as caught:
        fetch(node, node.all_pieces(), [source], fleet.keys)
    assert caught.value.where == WEIGHTS
    assert node.piece(WEIGHTS, 3) in node.missing(node.all_pieces())
    node.verify(sorted(set(node.all_pieces()) - set(node.missing(node.all_pieces()))))


def test_a_source_that_vanishes_leaves_its_pieces_to_others(
    fleet: BulkFleet, package: Path, node: PackageStore
) -> None:
    sources = [fleet.serve(package, "a"), fleet.serve(package, "b")]
    for server in fleet.servers.values():
        slow_down(server, 20e6)
    reports = Reports(PIECE_BYTES, fleet.servers["a"].close)
    fetch(node, node.all_pieces(), sources, fleet.keys, progress=reports, stall_seconds=10.0)
    node.verify(node.all_pieces())


def test_the_only_source_vanishes(fleet: BulkFleet, package: Path, node: PackageStore) -> None:
    source = fleet.serve(package)
    slow_down(fleet.servers["kitchen"], 20e6)
    reports = Reports(2 * PIECE_BYTES, fleet.servers["kitchen"].close)
    with pytest.raises(PackageError, match=r"kitchen \(.*\): no answer for 4 s"):
        fetch(node, node.all_pieces(), [source], fleet.keys, progress=reports, stall_seconds=4.0)
    assert 0 < len(node.missing(node.all_pieces())) < 10  # what had arrived is kept


def test_a_slow_source_does_not_decide_the_end(fleet: BulkFleet, package: Path, node: PackageStore) -> None:
    sources = [fleet.serve(package, "slow"), fleet.serve(package, "fast")]
    slow_down(fleet.servers["slow"], 1.0)  # its second slice would come after three days
    fetch(node, node.all_pieces(), sources, fleet.keys, stall_seconds=1000)
    node.verify(node.all_pieces())


def test_a_forgotten_key_is_cut_off(fleet: BulkFleet, package: Path, node: PackageStore) -> None:
    source = fleet.serve(package)
    slow_down(fleet.servers["kitchen"], 20e6)
    reports = Reports(2 * PIECE_BYTES, lambda: fleet.members.discard(fleet.keys.public))
    with pytest.raises(PackageError, match="no answer for 4 s"):
        fetch(node, node.all_pieces(), [source], fleet.keys, progress=reports, stall_seconds=4.0)
    assert node.missing(node.all_pieces())


def test_nobody_has_it(fleet: BulkFleet, package: Path, node: PackageStore, tmp_path: Path) -> None:
    make_package(tmp_path / "other" / "package", 1000)
    source = fleet.serve(tmp_path / "other" / "package", "office")
    with pytest.raises(PackageError, match=r"nobody sends bytes 0-5 \(piece 0\) and 9 others \(office .*does not have"):
        fetch(node, node.all_pieces(), [source], fleet.keys)
    with pytest.raises(PackageError, match="there was nobody to ask"):
        fetch(node, node.all_pieces(), [], fleet.keys)


FALSE_ANSWERS: dict[str, tuple[Callable[[Request, bytes], list[bytes]], str]] = {
    "noise": (lambda request, data: [b"noise"], "not as agreed"),
    "three parts": (lambda request, data: [encode(Answer(number=request.number)), data, b""], "3 parts"),
    "another number": (lambda request, data: [encode(Answer(number=request.number + 100)), data], "was not asked"),
    "too little": (lambda request, data: [encode(Answer(number=request.number)), data[:-1]], "bytes"),
    "too much": (lambda request, data: [encode(Answer(number=request.number)), data + b"x"], "bytes"),
    "a refusal": (lambda request, data: [encode(Answer(number=request.number, refusal="no"))], ""),
    "unreadable": (lambda request, data: [encode(Answer(number=0, refusal="speak up"))], "speak up"),
}


@pytest.mark.parametrize("kind", FALSE_ANSWERS)
@pytest.mark.parametrize("to", ["held", "slice"])
def test_a_source_that_breaks_the_rules_is_dropped(
    fleet: BulkFleet, package: Path, node: PackageStore, kind: str, to: str
) -> None:
    store, (answer, why) = PackageStore(package), FALSE_ANSWERS[kind]

    def reply(request: Request) -> list[bytes]:
        want = request.want
        if isinstance(want, WantSlice):
            data = store.read(store.piece(want.path, want.index), want.offset, want.length)
        else:
            data = pack_held(store.manifest, ())
        return answer(request, data) if want.kind == to else [encode(Answer(number=request.number)), data]

    false = fleet.impose(reply)
    with pytest.raises(PackageError, match=f"impostor .*: .*{why}"):
        fetch(node, node.all_pieces(), [false], fleet.keys)
    assert node.missing(node.all_pieces()) == node.all_pieces()
    wanted = node.pieces(WEIGHTS)[:2]
    fetch(node, wanted, [false, fleet.serve(package, "honest")], fleet.keys)
    node.verify(wanted)


def test_cancelling_keeps_what_has_arrived(fleet: BulkFleet, package: Path, node: PackageStore) -> None:
    source, cancel = fleet.serve(package), threading.Event()
    slow_down(fleet.servers["kitchen"], 40e6)
    with pytest.raises(FetchCancelledError):
        fetch(node, node.all_pieces(), [source], fleet.keys, progress=Reports(8e6, cancel.set), cancel=cancel)
    left = node.missing(node.all_pieces())
    assert 0 < len(left) < 10


def test_what_is_received_keeps_a_pace_too(fleet: BulkFleet, package: Path, node: PackageStore) -> None:
    spent: list[int] = []

    class Counted(Pace):
        def spend(self, size: int, now: float) -> None:
            assert self.wait(now) == 0
            spent.append(size)
            super().spend(size, now)

    pace = Counted(rate=1e9)
    pace.busy = True
    fetch(node, node.all_pieces(), [fleet.serve(package)], fleet.keys, pace=pace)
    assert sum(spent) == SIZE + 6 and max(spent) == SMALL_SLICE_BYTES
    node.verify(node.all_pieces())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of five pieces."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux can mount a small file system")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={5 * PIECE_BYTES}", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_too_small_a_disk_is_known_before_anything_is_asked(fleet: BulkFleet, package: Path, small_disk: Path) -> None:
    node = Library(small_disk).create(manifests.read(package))
    with pytest.raises(CapacityError, match=rf"{SIZE + 6:,} bytes have to be fetched, the disk has [\d,]+ free"):
        fetch(node, node.all_pieces(), [], fleet.keys)
    stage = node.pieces_of_stage(0, 1)
    fetch(node, stage, [fleet.serve(package)], fleet.keys)  # which fits
    node.verify(stage)


def test_a_disk_that_fills_up_loses_nothing(fleet: BulkFleet, package: Path, small_disk: Path) -> None:
    node = Library(small_disk).create(manifests.read(package))
    source, ballast = fleet.serve(package), small_disk / "ballast"
    slow_down(fleet.servers["kitchen"], 10e6)
    wanted = node.pieces_of_stage(0, 2)[:5]

    def fill() -> None:
        eventually(lambda: len(node.missing(wanted)) < len(wanted))  # a piece that is here may not be written yet
        _fill(ballast)

    reports = Reports(2 * PIECE_BYTES, fill)
    with pytest.raises(CapacityError, match="the disk is full"):
        fetch(node, wanted, [source], fleet.keys, progress=reports)
    kept = sorted(set(wanted) - set(node.missing(wanted)))
    node.verify(kept)
    ballast.unlink()
    fetch(node, wanted, [source], fleet.keys)
    node.verify(wanted)
    assert kept


def _fill(ballast: Path) -> None:
    with contextlib.suppress(OSError), ballast.open("wb") as file:
        while True:
            file.write(bytes(2**16))


def test_a_folder_that_vanishes_is_an_error(fleet: BulkFleet, package: Path, node: PackageStore) -> None:
    for path in sorted(node.folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    node.folder.rmdir()
    with pytest.raises(PackageError, match="the folder cannot be used"):
        fetch(node, [Piece(GRAPH, 0, 0, 6)], [fleet.serve(package)], fleet.keys)
