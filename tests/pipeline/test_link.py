from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import zmq

from pipeline.link import KeyPair, Peer, Receiver, Sender

LARGEST = 1000


Context = zmq.Context[zmq.Socket[bytes]]


class Link:
    """A receiver, the keys of the one who may send to it, and a context for those who try."""

    def __init__(self) -> None:
        self.context, self.outside = Context(), Context()
        self.keys, self.friend = KeyPair.new(), KeyPair.new()
        self.receiver = Receiver(self.context, self.keys, self.friend.public, LARGEST, "127.0.0.1")
        self.receiver.socket.rcvtimeo = 60_000
        self.peer = Peer(host="127.0.0.1", port=self.receiver.port, public=self.keys.public)

    def sender(self) -> Sender:
        return Sender(self.outside, self.friend, self.peer)

    def close(self) -> None:
        self.receiver.close()
        self.context.term()
        self.outside.destroy(linger=0)


@pytest.fixture
def link() -> Iterator[Link]:
    link = Link()
    yield link
    link.close()


def test_messages_arrive_in_order(link: Link) -> None:
    sender = link.sender()
    assert "127.0.0.1" in link.receiver.socket.getsockopt_string(zmq.LAST_ENDPOINT)
    for i in range(20):
        sender.send([b"header %d" % i, memoryview(b"payload")])
        assert link.receiver.receive() == [b"header %d" % i, b"payload"]
    assert link.receiver.receive_nowait() is None


def stranger(link: Link, kind: str) -> zmq.Socket[bytes]:
    socket = link.outside.socket(zmq.PUSH)
    socket.linger = 0
    if kind != "no keys":
        keys = KeyPair.new() if kind == "unknown key" else link.friend
        socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
        server = KeyPair.new() if kind == "wrong server key" else link.keys
        socket.curve_serverkey = server.public.encode()
    return socket


@pytest.mark.parametrize("kind", ["no keys", "unknown key", "wrong server key"])
def test_a_stranger_gets_nothing_in(link: Link, kind: str) -> None:
    intruder = stranger(link, kind)
    monitor = intruder.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_SUCCEEDED
        | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        | zmq.EVENT_DISCONNECTED
    )
    intruder.connect(link.peer.endpoint)
    intruder.send(b"forged")
    assert monitor.poll(60_000)
    event, _ = monitor.recv_multipart()
    assert int.from_bytes(event[:2], "little") != zmq.EVENT_HANDSHAKE_SUCCEEDED
    # the friend still gets in, and what it sends is all that arrives
    friend = link.sender()  # kept: one that nobody holds is closed, with what it has not sent
    friend.send([b"true"])
    assert link.receiver.receive() == [b"true"]
    assert link.receiver.receive_nowait() is None


def test_a_sender_does_not_talk_to_a_false_receiver(link: Link) -> None:
    sender = Sender(
        link.outside, link.friend, Peer(host="127.0.0.1", port=link.receiver.port, public=KeyPair.new().public)
    )
    assert not sender.socket.poll(300, zmq.POLLOUT)
    assert not sender.is_ready


@pytest.mark.parametrize("size", [0, 1, 255, 256, LARGEST - 1, LARGEST])
def test_parts_as_large_as_allowed_are_received(link: Link, size: int) -> None:
    sender = link.sender()
    sender.send([b"x" * size, b"x" * LARGEST])
    assert link.receiver.receive() == [b"x" * size, b"x" * LARGEST]


def test_parts_larger_than_allowed_are_not_received(link: Link) -> None:
    sender = link.sender()
    monitor = sender.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    sender.send([b"x" * (LARGEST + 100)])
    assert monitor.poll(60_000)  # cut off
    for _ in range(20):  # and connected again; what was on the old connection may be lost
        sender.send([b"small"])
        if link.receiver.socket.poll(500):
            break
    assert link.receiver.receive() == [b"small"]


def test_a_slow_receiver_holds_its_sender_back(link: Link) -> None:
    sender = link.sender()
    assert sender.socket.poll(60_000, zmq.POLLOUT)  # connected
    sent = 0
    while sender.socket.poll(2000, zmq.POLLOUT):
        sender.socket.send(b"x" * 900, zmq.NOBLOCK)
        sent += 1
        assert sent < 100_000
    assert not sender.is_ready
    assert [link.receiver.receive() for _ in range(sent)] == [[b"x" * 900]] * sent


def test_terminating_the_context_wakes_a_waiting_receiver(link: Link) -> None:
    ended = threading.Event()

    def receive() -> None:
        with pytest.raises(zmq.ContextTerminated):
            link.receiver.receive()
        link.receiver.close()
        ended.set()

    link.receiver.socket.rcvtimeo = -1
    threading.Thread(target=receive, daemon=True).start()
    link.context.term()
    assert ended.wait(60)


def test_keys_do_not_show_their_secret() -> None:
    keys = KeyPair.new()
    assert keys.secret not in repr(keys)
    assert KeyPair.model_validate_json(keys.model_dump_json()) == keys
