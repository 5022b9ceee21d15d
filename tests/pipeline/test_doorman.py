from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import zmq

from pipeline.doorman import Doorman
from pipeline.link import KeyPair

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]


class House:
    """A socket behind a doorman, and a context for those who come."""

    def __init__(self) -> None:
        self.context, self.outside = Context(), Context()
        self.keys = KeyPair.new()
        self.doorman = Doorman(self.context)
        self._sockets: list[Socket] = []
        self._visitors: list[Socket] = []

    def listen(self, domain: bytes) -> tuple[Socket, str]:
        socket = self.context.socket(zmq.ROUTER)
        socket.linger, socket.rcvtimeo, socket.ipv6 = 0, 60_000, True
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = self.keys.public.encode(), self.keys.secret.encode()
        socket.zap_domain = domain
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        port = socket.bind_to_random_port("tcp://*")
        self._sockets.append(socket)
        return socket, f"tcp://127.0.0.1:{port}"

    def come(self, address: str, keys: KeyPair, say: bytes) -> Socket:
        return self._knock(self._visitor(keys), address, say)

    def refusal(self, address: str, keys: KeyPair, say: bytes) -> Socket:
        """Come; a socket that reports when the key is refused. It is there before, for that may be at once."""
        visitor = self._visitor(keys)
        report = visitor.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        self._knock(visitor, address, say)
        return report

    def _visitor(self, keys: KeyPair) -> Socket:
        socket = self.outside.socket(zmq.DEALER)
        socket.linger, socket.reconnect_ivl = 0, 50
        socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
        socket.curve_serverkey = self.keys.public.encode()
        self._visitors.append(socket)  # or it is closed when nobody holds it
        return socket

    def _knock(self, visitor: Socket, address: str, say: bytes) -> Socket:
        visitor.connect(address)
        visitor.send(say)
        return visitor

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()
        self.context.term()
        self.outside.destroy(linger=0)


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.close()


def heard(socket: Socket) -> tuple[str, bytes]:
    """The user and the text of the next message."""
    _route, text = socket.recv_multipart(copy=False)
    return str(text.get("User-Id")), text.bytes


def test_whom_the_check_allows_comes_in_under_the_name_of_its_key(house: House) -> None:
    friend, stranger = KeyPair.new(), KeyPair.new()
    asked: list[tuple[str, str]] = []

    def check(key: str, address: str) -> bool:
        asked.append((key, address))
        return key == friend.public

    socket, address = house.listen(house.doorman.guard(check, final=True))
    refused = house.refusal(address, stranger, b"forged")
    assert refused.poll(60_000)
    house.come(address, friend, b"true")
    assert heard(socket) == (friend.public, b"true")
    assert not socket.poll(0)
    assert set(asked) == {(friend.public, "127.0.0.1"), (stranger.public, "127.0.0.1")}


def test_each_socket_has_its_own_rule(house: House) -> None:
    one, two = KeyPair.new(), KeyPair.new()
    for_one, to_one = house.listen(house.doorman.let_in(one.public))
    for_two, to_two = house.listen(house.doorman.let_in(two.public))
    assert house.refusal(to_one, two, b"wrong").poll(60_000)
    assert house.refusal(to_two, one, b"wrong").poll(60_000)
    house.come(to_one, one, b"1")
    house.come(to_two, two, b"2")
    assert (heard(for_one), heard(for_two)) == ((one.public, b"1"), (two.public, b"2"))


def test_who_is_refused_for_now_comes_back_by_itself(house: House) -> None:
    node = KeyPair.new()
    let_in, knocked = threading.Event(), threading.Event()

    def check(_key: str, _address: str) -> bool:
        knocked.set()
        return let_in.is_set()

    socket, address = house.listen(house.doorman.guard(check))
    house.come(address, node, b"hello")
    assert knocked.wait(60)
    assert not socket.poll(100)
    let_in.set()
    assert heard(socket) == (node.public, b"hello")


def broken(_key: str, _address: str) -> bool:
    raise RuntimeError("a defect in the check")


@pytest.mark.parametrize(
    "make", [lambda doorman: doorman.guard(broken, final=True), lambda _: b"a domain nobody knows"]
)
def test_a_check_that_cannot_be_made_is_a_no(house: House, make: Callable[[Doorman], bytes]) -> None:
    friend = KeyPair.new()
    _, closed = house.listen(make(house.doorman))
    socket, opened = house.listen(house.doorman.let_in(friend.public))
    for _ in range(3):
        assert house.refusal(closed, friend, b"anyone there?").poll(60_000)
    house.come(opened, friend, b"still served")
    assert heard(socket) == (friend.public, b"still served")


@pytest.mark.parametrize("request_", [[b""], [b"1.0"], [b"1.0", b"7", b"door 0", b"?", b"", b"CURVE"], [b"\xff"] * 12])
def test_a_request_that_makes_no_sense_is_a_no(house: House, request_: list[bytes]) -> None:
    friend = KeyPair.new()
    socket, address = house.listen(house.doorman.guard(lambda key, _: key == friend.public))
    with house.context.socket(zmq.REQ) as asker:
        asker.linger, asker.rcvtimeo = 0, 60_000
        asker.connect("inproc://zeromq.zap.01")
        asker.send_multipart(request_)
        assert asker.recv_multipart()[2] != b"200"
    house.come(address, friend, b"hello")
    assert heard(socket) == (friend.public, b"hello")


@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN"])
def test_nobody_comes_in_without_a_key(house: House, mechanism: str) -> None:
    asked: list[str] = []

    def check(key: str, _address: str) -> bool:
        asked.append(key)
        return True

    socket, address = house.listen(house.doorman.guard(check))
    visitor = house.outside.socket(zmq.DEALER)
    visitor.linger = 0
    if mechanism == "PLAIN":
        visitor.plain_username, visitor.plain_password = b"admin", b"admin"
    failed = visitor.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED
    )
    visitor.connect(address)
    visitor.send(b"let me in")
    assert failed.poll(60_000)
    assert not socket.poll(0)
    assert not asked


def test_the_doorman_leaves_with_the_context() -> None:
    context = Context()
    before = set(threading.enumerate())
    Doorman(context)
    (thread,) = set(threading.enumerate()) - before
    context.term()
    thread.join(60)
    assert not thread.is_alive()
