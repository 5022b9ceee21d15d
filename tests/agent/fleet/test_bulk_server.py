"""The bulk server against good, bad and careless clients, over real sockets."""

from __future__ import annotations

import json
import os
import random
import socket as tcp
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import zmq
from bulk_fleet import BulkFleet
from fake_packages import make_package

from agent.fleet.bulk import bulk_server
from agent.fleet.bulk.bulk_client import BulkClient, Source
from agent.fleet.bulk.bulk_messages import (
    REQUEST_BYTES,
    SLICE_BYTES,
    UNREADABLE,
    WINDOW,
    WantEcho,
    WantHeld,
    WantManifest,
    WantSlice,
    read_answer,
    unpack_held,
)
from agent.fleet.bulk.bulk_server import BulkServer
from agent.fleet.bulk.library import Library
from agent.fleet.trust import sockets
from pipeline.link import KeyPair
from shards.errors import ConfigurationError, WireError
from shards.manifest import GRAPH, MANIFEST, PIECE_BYTES, WEIGHTS, Manifest
from shards.store import PackageStore

PATIENCE = 60.0

SIZE = 2 * PIECE_BYTES + 1000


@pytest.fixture
def fleet() -> Iterator[BulkFleet]:
    fleet = BulkFleet()
    yield fleet
    fleet.close()


@pytest.fixture
def package(tmp_path: Path) -> Manifest:
    (tmp_path / "secret").write_bytes(b"secret" * 1000)
    return make_package(tmp_path / "package", SIZE)


@pytest.fixture
def source(fleet: BulkFleet, package: Manifest, tmp_path: Path) -> Source:
    return fleet.serve(tmp_path / "package")


@pytest.fixture
def client(fleet: BulkFleet, source: Source) -> BulkClient:
    return fleet.client(source)


def slice_of(package: Manifest, **change: object) -> WantSlice:
    fields = {"package_id": package.package_id, "path": WEIGHTS, "index": 0, "offset": 0, "length": 100}
    return WantSlice.model_validate(fields | change)


def test_answers(client: BulkClient, package: Manifest, tmp_path: Path) -> None:
    assert Manifest.model_validate_json(client.call(WantManifest(package_id=package.package_id), PATIENCE)) == package
    every = PackageStore(tmp_path / "package").all_pieces()
    held = client.call(WantHeld(package_id=package.package_id), PATIENCE)
    assert unpack_held(package, held, every) == set(every)
    weights = (tmp_path / "package" / WEIGHTS).read_bytes()
    assert client.call(slice_of(package), PATIENCE) == weights[:100]
    assert (
        client.call(slice_of(package, index=1, offset=7, length=SLICE_BYTES), PATIENCE)
        == (weights[PIECE_BYTES + 7 : PIECE_BYTES + 7 + SLICE_BYTES])
    )
    assert client.call(slice_of(package, index=2, offset=900), PATIENCE) == weights[-100:]
    assert client.call(slice_of(package, path=GRAPH, length=6), PATIENCE) == b"<net/>"
    assert client.call(WantEcho(size=5), PATIENCE) == bytes(5)


def test_serves_what_it_has_of_a_package(fleet: BulkFleet, package: Manifest, tmp_path: Path) -> None:
    library, keys = Library(tmp_path / "cache"), KeyPair.new()
    store, whole = library.create(package), PackageStore(tmp_path / "package")
    _, second, _ = store.pieces(WEIGHTS)
    store.write(second, whole.read(second))
    server = fleet.servers["partial"] = BulkServer(keys, lambda key, address: True, library, host="127.0.0.1")
    client = fleet.client(Source(keys.public, "partial", "127.0.0.1", server.port))
    held = client.call(WantHeld(package_id=package.package_id), PATIENCE)
    assert unpack_held(package, held, store.all_pieces()) == {second}
    assert client.call(slice_of(package, index=1), PATIENCE) == whole.read(second)[:100]
    with pytest.raises(WireError, match="does not have piece 0"):
        client.call(slice_of(package, index=0), PATIENCE)
    (store.folder / WEIGHTS).unlink()
    with pytest.raises(WireError, match="does not have piece 1"):
        client.call(slice_of(package, index=1), PATIENCE)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"package_id": "0" * 64}, "does not have the package"),
        ({"path": "../secret"}, "lists no ../secret"),
        ({"path": "openvino/../../secret"}, "lists no"),
        ({"path": MANIFEST}, "lists no"),
        ({"path": "/etc/passwd"}, "lists no"),
        ({"path": ""}, "lists no"),
        ({"index": 3}, "no piece 3, the file has 3"),
        ({"index": 2**62}, "the file has 3"),
        ({"index": 2, "offset": 901}, "1000 bytes"),
        ({"offset": PIECE_BYTES - 1, "length": 2}, f"{PIECE_BYTES} bytes"),
        ({"path": GRAPH, "length": 7}, "6 bytes"),
    ],
)
def test_refuses_what_is_not_in_the_package(
    client: BulkClient, package: Manifest, change: dict[str, object], why: str
) -> None:
    with pytest.raises(WireError, match=why):
        client.call(slice_of(package, **change), PATIENCE)
    assert len(client.call(slice_of(package), PATIENCE)) == 100


def hostile_messages(package: Manifest) -> Iterator[list[bytes]]:
    noise = random.Random(0)
    for size in (0, 1, 10, 100, 1000, REQUEST_BYTES // 2):
        yield [noise.randbytes(size)]
    good = slice_of(package).model_dump() | {"kind": "slice"}
    for change in (
        {"offset": -1},
        {"index": -1},
        {"length": 2**31},
        {"length": -5},
        {"length": 10**400},
        {"package_id": "../../secret"},
        {"kind": "shell"},
        {"path": None},
    ):
        yield [json.dumps({"number": 1, "want": good | change}).encode()]
    for number in (0, -1, 2**63, 1.5, "1", None, [], True):
        yield [json.dumps({"number": number, "want": good}).encode()]
    yield [b"[" * (REQUEST_BYTES // 2)]
    yield [b'{"number": 1, "want": {"kind": "echo", "size": 1}, "number": 2}x']
    whole = json.dumps({"number": 1, "want": good}).encode()
    yield [whole[:20], whole[20:]]
    yield [whole] * 100


def test_hostile_messages_get_nothing(client: BulkClient, package: Manifest) -> None:
    for message in hostile_messages(package):
        client.socket.send_multipart(message)
        assert client.socket.poll(60_000), message
        answer, data = read_answer(client.socket.recv_multipart())
        assert (answer.number, data) == (UNREADABLE, b"") and answer.refusal, message
    assert len(client.call(slice_of(package), PATIENCE)) == 100


def test_giant_messages_cut_the_connection(fleet: BulkFleet, source: Source, package: Manifest) -> None:
    bad = fleet.client(source)
    bad.call(WantEcho(size=0), PATIENCE)
    monitor = bad.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    bad.socket.send(b"x" * 2**21)
    assert monitor.poll(60_000)
    bad.socket.disable_monitor()
    assert len(fleet.client(source).call(slice_of(package), PATIENCE)) == 100


def test_noise_before_the_handshake_is_ignored(fleet: BulkFleet, source: Source, package: Manifest) -> None:
    for noise in (random.Random(1).randbytes(10_000), b"GET / HTTP/1.1\r\n\r\n", b"\xff" + b"\0" * 8 + b"\x7f"):
        with tcp.create_connection((source.address, source.port)) as connection:
            connection.sendall(noise)
    assert len(fleet.client(source).call(slice_of(package), PATIENCE)) == 100


def test_strangers_are_not_answered(fleet: BulkFleet, source: Source, package: Manifest) -> None:
    stranger = fleet.client(source, KeyPair.new())
    stranger.ask(slice_of(package))
    assert stranger.receive(1.0) is None
    assert len(fleet.client(source).call(slice_of(package), PATIENCE)) == 100


def test_a_forgotten_key_is_cut_off_at_once(fleet: BulkFleet, source: Source, package: Manifest) -> None:
    guest = KeyPair.new()
    fleet.members.add(guest.public)
    client = fleet.client(source, guest)
    client.call(slice_of(package), PATIENCE)
    fleet.members.discard(guest.public)
    client.ask(slice_of(package))
    assert client.receive(1.0) is None
    assert len(fleet.client(source).call(slice_of(package), PATIENCE)) == 100


def test_more_requests_than_allowed_are_refused(fleet: BulkFleet, client: BulkClient, package: Manifest) -> None:
    client.call(WantEcho(size=0), PATIENCE)
    pace = fleet.servers["kitchen"].pace
    pace.rate, pace.busy = 1.0, True
    client.call(slice_of(package), PATIENCE)  # and nothing more for the next 1000 seconds
    for _ in range(WINDOW + 3):
        client.ask(slice_of(package))
    for _ in range(3):
        received = client.receive(PATIENCE)
        assert received is not None and received[0].refusal == f"more than {WINDOW} requests at a time"
    assert client.receive(0.5) is None


def test_while_tokens_flow_slices_wait_and_echoes_do_not(
    fleet: BulkFleet, client: BulkClient, package: Manifest
) -> None:
    server = fleet.servers["kitchen"]
    server.pace.rate = 1.0
    server.set_busy(True)
    client.call(slice_of(package), PATIENCE)
    number = client.ask(slice_of(package))
    assert client.receive(0.5) is None
    echo = client.ask(WantEcho(size=SLICE_BYTES))
    received = client.receive(PATIENCE)
    assert received is not None and received[0].number == echo
    server.set_busy(False)
    received = client.receive(PATIENCE)
    assert received is not None and received[0].number == number


def test_clients_take_turns(
    fleet: BulkFleet, source: Source, package: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, greedy, modest = fleet.servers["kitchen"], fleet.client(source), fleet.client(source)
    server.pace.rate = 1.0
    server.set_busy(True)
    greedy.call(slice_of(package), PATIENCE)
    answered: list[int] = []
    monkeypatch.setattr(bulk_server, "_slice", lambda store, want: answered.append(want.index) or b"")
    for _ in range(WINDOW):
        greedy.ask(slice_of(package, index=0))
    greedy.call(WantEcho(size=0), PATIENCE)  # by now all of these are waiting
    for _ in range(2):
        modest.ask(slice_of(package, index=1))
    modest.call(WantEcho(size=0), PATIENCE)
    server.set_busy(False)
    for _ in range(WINDOW):
        greedy.receive(PATIENCE)
    assert answered == [0, 1, 0, 1, *[0] * (WINDOW - 2)]


def test_one_that_does_not_read_costs_little(fleet: BulkFleet, source: Source, package: Manifest) -> None:
    lazy = sockets.client(fleet.context, zmq.DEALER, fleet.keys, source.key, max_bytes=2**24, waiting=1)
    lazy.sndhwm = 0
    lazy.connect(f"tcp://{source.address}:{source.port}")
    before = psutil.Process().memory_info().rss
    echo = json.dumps({"number": 1, "want": {"kind": "echo", "size": SLICE_BYTES}}).encode()
    for _ in range(2000):  # half a gigabyte
        lazy.send(echo)
    other = fleet.client(source)
    for _ in range(20):
        assert len(other.call(slice_of(package), PATIENCE)) == 100
    assert psutil.Process().memory_info().rss - before < 100 * 2**20
    lazy.close()


def test_closing_is_quick_and_leaves_nothing(tmp_path: Path, package: Manifest) -> None:
    before = set(threading.enumerate())
    fleet = BulkFleet()
    client = fleet.client(fleet.serve(tmp_path / "package"))
    client.call(slice_of(package), PATIENCE)
    files = psutil.Process().num_fds() if os.name == "posix" else 0
    fleet.close()
    deadline = time.monotonic() + PATIENCE
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(threading.enumerate()) <= before
    assert not files or psutil.Process().num_fds() < files


def test_a_port_that_is_taken_is_named(fleet: BulkFleet, source: Source, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=str(source.port)):
        BulkServer(KeyPair.new(), lambda *_: True, Library(tmp_path), host="127.0.0.1", port=source.port)
