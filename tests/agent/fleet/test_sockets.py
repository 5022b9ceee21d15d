"""Sockets of a fleet against whoever can reach their port."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import zmq
from attackers import GREETING, PATIENCE, Context, Socket, drip, is_cut_off, stranger, tcp

from agent.fleet.trust import sockets
from agent.fleet.trust.members import Members
from agent.fleet.trust.pending import MOST_AT_ADDRESS, Pending
from pipeline.doorman import Doorman
from pipeline.link import KeyPair, port_of
from shards.errors import ConfigurationError

LARGEST = 10_000
MIB = 2**20


class Server:
    """Echoes what members say, under the key that they have proven; strangers wait in `pending`."""

    def __init__(self, folder: Path) -> None:
        self.keys = KeyPair.new()
        self.members = Members(folder, self.keys.public)
        self.pending = Pending(self.members)
        self.heard: list[bytes] = []
        self.asked: set[str] = set()
        self.context, self.outside = Context(), Context()
        self.socket = sockets.listen(
            self.context, zmq.ROUTER, self.keys, domain=Doorman(self.context).guard(self._check), max_bytes=LARGEST
        )
        self.port = port_of(self.socket)
        self._end, end = (self.context.socket(zmq.PAIR) for _ in range(2))
        self._end.bind("inproc://end")
        end.connect("inproc://end")
        self._thread = threading.Thread(target=self._run, args=(end,), daemon=True)
        self._thread.start()

    def _check(self, key: str, address: str) -> bool:
        self.asked.add(key)
        return self.pending.check(key, address)

    def _run(self, end: Socket) -> None:
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(end, zmq.POLLIN)
        while end not in dict(poller.poll()):
            route, text = self.socket.recv_multipart(copy=False)
            self.heard.append(text.bytes)
            self.socket.send_multipart([route.bytes, str(text.get("User-Id")).encode(), text.bytes])
        self.socket.close()
        end.close()

    def member(self) -> tuple[Socket, KeyPair]:
        keys = KeyPair.new()
        self.members.add(keys.public, "pc")
        return self.connect(keys), keys

    def connect(self, keys: KeyPair, host: str = "127.0.0.1") -> Socket:
        client = sockets.connect(self.outside, zmq.DEALER, keys, self.keys.public, host, self.port, max_bytes=LARGEST)
        client.rcvtimeo = round(PATIENCE * 1000)
        return client

    def close(self) -> None:
        self._end.send(b"")
        self._thread.join()
        self._end.close()
        self.context.term()
        self.outside.destroy(linger=0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()


def is_served(client: Socket, keys: KeyPair, text: bytes = b"hello") -> bool:
    client.send(text)
    return client.recv_multipart() == [keys.public.encode(), text]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_a_member_is_served_under_its_key(server: Server, host: str) -> None:
    keys = KeyPair.new()
    server.members.add(keys.public, "pc")
    assert is_served(server.connect(keys, host), keys)


def test_who_is_approved_comes_in_by_itself(server: Server) -> None:
    keys = KeyPair.new()
    client = server.connect(keys)
    client.send(b"hello")
    while not server.pending.waiting:
        assert not client.poll(20)
    (node,) = server.pending.waiting
    assert (node.key, node.address) == (keys.public, "127.0.0.1")
    server.pending.approve(node.code)
    assert client.recv_multipart() == [keys.public.encode(), b"hello"]


def test_a_port_that_is_taken_is_an_error(server: Server) -> None:
    with pytest.raises(ConfigurationError, match=str(server.port)):
        sockets.listen(server.context, zmq.ROUTER, server.keys, domain=b"x", max_bytes=LARGEST, port=server.port)


@pytest.mark.parametrize("host", ["no host", "10.0.0.1/24", "*"])
def test_what_is_no_address_is_an_error(server: Server, host: str) -> None:
    with pytest.raises(ConfigurationError, match="no address"):
        server.connect(KeyPair.new(), host)


def test_nobody_gets_in_without_a_doorman() -> None:
    context, outside, keys, friend = Context(), Context(), KeyPair.new(), KeyPair.new()
    socket_ = sockets.listen(context, zmq.ROUTER, keys, domain=b"x", max_bytes=LARGEST)
    client = sockets.connect(outside, zmq.DEALER, friend, keys.public, "127.0.0.1", port_of(socket_), max_bytes=LARGEST)
    failed = client.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
    assert failed.poll(PATIENCE * 1000)
    assert not socket_.poll(0)
    outside.destroy(linger=0)
    socket_.close()
    context.term()


@pytest.mark.parametrize(
    "noise",
    [
        os.urandom(100_000),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10,
        b"\0" * 1000,
        GREETING + os.urandom(1000),
        GREETING.replace(b"CURVE", b"NULL\0") + b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER",
        GREETING.replace(b"CURVE", b"PLAIN") + b"\x04\x14\x05HELLO\x05admin\x05admin",
        # RFC 23: a command, and a message, of 2**31 bytes, and of as many as there are numbers for
        GREETING + b"\x06" + (2**31).to_bytes(8, "big") + b"\x05HELLO" + b"x" * 10_000,
        GREETING + b"\x02" + (2**31).to_bytes(8, "big") + b"x" * 10_000,
        GREETING + b"\x06" + b"\xff" * 8 + b"x" * 10_000,
    ],
    ids=["random", "http", "zeros", "after greeting", "null", "plain", "2**31 command", "2**31 message", "2**64"],
)
def test_noise_is_cut_off_and_disturbs_nobody(server: Server, noise: bytes) -> None:
    client, keys = server.member()
    assert is_served(client, keys)
    memory = psutil.Process().memory_info()
    with tcp(server.port) as connection:
        with contextlib.suppress(ConnectionError):  # cut off already
            connection.sendall(noise)
        assert is_served(client, keys)
        assert is_cut_off(connection)
    grown = psutil.Process().memory_info()
    assert grown.vms - memory.vms < 1024 * MIB  # nothing was set aside for what was only announced
    assert grown.rss - memory.rss < 64 * MIB
    assert is_served(client, keys)
    assert set(server.heard) == {b"hello"}
    assert server.asked == {keys.public}


def test_a_member_that_sends_too_much_is_cut_off(server: Server) -> None:
    client, keys = server.member()
    other, other_keys = server.member()
    assert is_served(client, keys)
    cut = client.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    client.send(b"x" * (LARGEST + 1000))
    assert cut.poll(PATIENCE * 1000)
    assert is_served(other, other_keys)
    assert set(server.heard) == {b"hello"}


@pytest.mark.parametrize("begin", [b"", GREETING], ids=["at once", "after the greeting"])
def test_who_says_nothing_is_cut_off_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: bytes) -> None:
    monkeypatch.setattr(sockets, "HANDSHAKE_SECONDS", 0.3)
    server = Server(tmp_path)
    with tcp(server.port) as connection:
        connection.sendall(begin)
        assert is_cut_off(connection)
    server.close()


@pytest.mark.parametrize(
    ("begin", "rest"),
    [(b"", GREETING[:-1]), (GREETING, b"\x04\xc8\x05HELLO" + bytes(193))],
    ids=["at once", "after the greeting"],
)
def test_a_slow_loris_is_cut_off_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: bytes, rest: bytes
) -> None:
    """One byte now and then of what could become a greeting, or a client's first command."""
    monkeypatch.setattr(sockets, "HANDSHAKE_SECONDS", 0.5)
    server = Server(tmp_path)
    with tcp(server.port) as connection:
        connection.sendall(begin)
        assert drip(connection, rest, 0.1)
    assert not server.heard
    server.close()


def test_many_slow_clients_keep_no_member_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "HANDSHAKE_SECONDS", 0.5)
    server = Server(tmp_path)
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) for _ in range(200)]
    client, keys = server.member()
    assert is_served(client, keys)
    assert all(is_cut_off(connection) for connection in slow)
    assert is_served(client, keys)
    for connection in slow:
        connection.close()
    server.close()


def test_a_client_is_not_kept_waiting_by_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "HANDSHAKE_SECONDS", 0.3)
    context = Context()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        client = sockets.connect(
            context, zmq.DEALER, KeyPair.new(), KeyPair.new().public, "127.0.0.1", port, max_bytes=LARGEST
        )
        listener.settimeout(PATIENCE)
        for _ in range(2):  # it gives up, and tries again
            listener.accept()[0].close()
        client.close()
    context.term()


def test_hundreds_of_strangers_disturb_nobody(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    client, keys = server.member()
    assert is_served(client, keys)
    strangers = 300
    memory = psutil.Process().memory_info().rss
    rounds = 0
    for begin in range(0, strangers, 50):
        crowd = [stranger(server.outside, server.keys.public, server.port) for _ in range(50)]
        while len(server.asked) < begin + 50 + 1:
            assert is_served(client, keys)
            rounds += 1
            assert rounds < 100_000
        for each in crowd:
            each.close()
    assert len(server.asked) == strangers + 1
    assert set(server.heard) == {b"hello"}
    assert len(server.pending.waiting) == MOST_AT_ADDRESS
    assert len([record for record in caplog.records if "waits" in record.message]) == MOST_AT_ADDRESS
    assert psutil.Process().memory_info().rss - memory < 100 * MIB  # the strangers' own sockets included
    assert is_served(client, keys)
