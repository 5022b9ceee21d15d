"""Joining with a token, over real sockets."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from attackers import PATIENCE, Context, Socket, Tape, is_cut_off, stranger, tcp

from agent.fleet.control.messages import PROTOCOL
from agent.fleet.trust import sockets
from agent.fleet.trust.door import MAX_BYTES, Door, Joined, JoinRequest, join_with_token
from agent.fleet.trust.identity import FleetIdentity, NodeIdentity
from agent.fleet.trust.members import Members, code_of
from agent.fleet.trust.token import Token, decode, encode
from pipeline.doorman import Doorman
from pipeline.link import KeyPair, port_of
from shards.errors import ConfigurationError

HOSTS = ["127.0.0.1"]
CONTROL = 8115


def token_of(fleet: FleetIdentity) -> Token:
    return decode(encode(fleet.keys.public, fleet.joining.secret))


class Head:
    """A fleet with an open door."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet = FleetIdentity.load_or_create(folder)
        self.members = Members(folder, self.fleet.keys.public)
        self.door = Door(self.fleet, self.members, CONTROL, host="127.0.0.1", port=0)
        self.token = token_of(self.fleet)

    def join(self, node: NodeIdentity, token: Token | None = None) -> Joined:
        return join_with_token(HOSTS, self.door.port, token or self.token, node, seconds=PATIENCE)


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    head = Head(tmp_path / "head")
    yield head
    head.door.close()


def new_node(name: str = "pc") -> NodeIdentity:
    return NodeIdentity(name=name, keys=KeyPair.new())


@pytest.fixture
def raw(head: Head) -> Iterator[Socket]:
    """A client with the joining key that can say anything."""
    context = Context()
    client = sockets.connect(
        context, zmq.DEALER, head.token.joining, head.fleet.keys.public, HOSTS[0], head.door.port, max_bytes=MAX_BYTES
    )
    client.rcvtimeo = round(PATIENCE * 1000)
    yield client
    context.destroy(linger=0)


def request_of(node: NodeIdentity, **changes: object) -> bytes:
    request = JoinRequest(public=node.keys.public, name=node.name, protocol=PROTOCOL, version="1.2.3")
    return json.dumps(request.model_dump() | changes).encode()


def test_a_node_with_the_token_is_a_member(head: Head) -> None:
    node = new_node()
    joined = head.join(node)
    assert (joined.fleet, joined.name, joined.control_port) == (head.fleet.name, "pc", CONTROL)
    assert head.members.is_member(node.keys.public)


def test_to_join_twice_does_no_harm(head: Head) -> None:
    node = new_node()
    assert head.join(node) == head.join(node)
    assert len(head.members.members) == 1
    assert head.join(new_node()).name == "pc-2"


def test_nobody_is_renamed_by_somebody_elses_request(head: Head, raw: Socket) -> None:
    node = new_node()
    head.join(node)
    raw.send(request_of(node, name="another"))
    assert json.loads(raw.recv())["name"] == "pc"
    assert [member.name for member in head.members.members] == ["pc"]


def test_the_address_that_works_is_used(head: Head) -> None:
    node = new_node()
    with socket.create_server(("127.0.0.2", head.door.port)):  # somebody else, who says nothing
        hosts = ["127.0.0.2", "192.0.2.1", "127.0.0.1"]
        join_with_token(hosts, head.door.port, head.token, node, seconds=PATIENCE)
    assert head.members.is_member(node.keys.public)


def test_another_token_is_refused_at_once(head: Head, caplog: pytest.LogCaptureFixture) -> None:
    wrong = Token(fleet=head.fleet.keys.public, joining=KeyPair.new())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(ConfigurationError, match="not valid any more"):
                head.join(new_node(), wrong)
    (record,) = caplog.records
    assert "127.0.0.1" in record.message
    assert not head.members.members


def test_tokens_that_are_made_up_do_not_fill_the_log(head: Head, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(8):
            with pytest.raises(ConfigurationError, match="not valid any more"):
                head.join(new_node(), Token(fleet=head.fleet.keys.public, joining=KeyPair.new()))
    assert len(caplog.records) == 4


def test_a_token_of_another_fleet_is_refused(head: Head, tmp_path: Path) -> None:
    other = token_of(FleetIdentity.load_or_create(tmp_path / "other"))
    with pytest.raises(ConfigurationError, match=r"not the head of the token's fleet.*Take the token"):
        join_with_token(HOSTS, head.door.port, other, new_node(), seconds=3)
    assert not head.members.members


def test_nobody_there_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    token = Token(fleet=KeyPair.new().public, joining=KeyPair.new())
    with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1, port {port}: it does not answer.*firewall"):
        join_with_token(HOSTS, port, token, new_node(), seconds=0.3)


def test_what_is_no_address_is_an_error(head: Head) -> None:
    with pytest.raises(ConfigurationError, match="no address"):
        join_with_token(["not an address"], head.door.port, head.token, new_node())


def test_a_renewed_token_makes_older_ones_worthless(head: Head, raw: Socket) -> None:
    raw.send(request_of(new_node()))  # comes in while its token is good
    assert json.loads(raw.recv())["kind"] == "joined"
    renewed = head.fleet.renew_token(head.folder)
    head.door.renew(renewed)
    with pytest.raises(ConfigurationError, match="not valid any more"):
        head.join(new_node())
    raw.send(request_of(new_node()))  # and is not heard any more, although it is connected
    node = new_node()
    head.join(node, token_of(renewed))
    assert not raw.poll(200)
    assert len(head.members.members) == 2
    assert head.members.is_member(node.keys.public)


def test_other_versions_are_told_so(head: Head, raw: Socket) -> None:
    raw.send(request_of(new_node(), protocol=PROTOCOL + 1, something_new=1))
    answer = json.loads(raw.recv())
    assert answer["kind"] == "not-joined"
    assert f"1.2.3 speaks protocol {PROTOCOL + 1}" in answer["what"]
    assert f"protocol {PROTOCOL}" in answer["what"]
    assert not head.members.members


def test_the_heads_no_is_an_error_with_its_words(head: Head) -> None:
    node = new_node()
    head.join(node)
    head.members.forget("pc")
    with pytest.raises(ConfigurationError, match="shut out") as caught:
        head.join(node)
    assert code_of(head.fleet.keys.public, node.keys.public) in str(caught.value)
    assert not head.members.is_member(node.keys.public)


def test_a_fleet_that_is_full_says_so(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.fleet.trust.members.MOST_MEMBERS", 1)
    head.join(new_node())
    with pytest.raises(ConfigurationError, match="cannot let this PC in"):
        head.join(new_node())


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [b"", request_of(new_node())[:-1]],
        [b"\xff" * 100],
        [b"[" * 4000],
        [request_of(new_node(), public="~" * 40)],
        [request_of(new_node(), public="x")],
        [request_of(new_node(), name="")],
        [request_of(new_node(), version="1" * 65)],
        [b"", request_of(new_node())],
        [b"x"] * 100,
    ],
)
def test_what_is_no_request_is_answered_with_no(head: Head, raw: Socket, parts: list[bytes]) -> None:
    raw.send_multipart(parts)
    assert json.loads(raw.recv())["kind"] == "not-joined"
    assert not head.members.members
    assert head.join(new_node()).name == "pc"


def test_requests_are_limited(head: Head, raw: Socket) -> None:
    for _ in range(60):
        raw.send(request_of(new_node()))
    answers = [json.loads(raw.recv()) for _ in range(60)]
    assert 0 < len(head.members.members) < 60
    assert {answer["kind"] for answer in answers} == {"joined", "not-joined"}


def test_a_request_that_is_too_large_is_cut_off(head: Head, raw: Socket) -> None:
    cut = raw.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    raw.send(b"x" * (MAX_BYTES + 100))
    assert cut.poll(PATIENCE * 1000)
    assert head.join(new_node()).name == "pc"


def test_a_node_that_answers_nonsense_is_an_error(tmp_path: Path) -> None:
    """A head of another version, perhaps."""
    fleet = FleetIdentity.load_or_create(tmp_path)
    context = Context()
    domain = Doorman(context).let_in(fleet.joining.public)
    server = sockets.listen(context, zmq.ROUTER, fleet.keys, domain=domain, max_bytes=MAX_BYTES)

    def answer() -> None:
        route, _ = server.recv_multipart()
        server.send_multipart([route, b"{}"])

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(ConfigurationError, match="does not understand"):
        join_with_token(HOSTS, port_of(server), token_of(fleet), new_node(), seconds=PATIENCE)
    thread.join()
    server.close()
    context.term()


def test_a_member_key_does_not_open_the_door(head: Head) -> None:
    node = new_node()
    head.join(node)
    context = Context()
    client = stranger(context, head.fleet.keys.public, head.door.port, node.keys)
    failed = client.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    assert failed.poll(PATIENCE * 1000)
    context.destroy(linger=0)


def test_a_replayed_join_is_refused(head: Head) -> None:
    node = new_node()
    tape = Tape(head.door.port)
    join_with_token(HOSTS, tape.port, head.token, node, seconds=PATIENCE)
    tape.wait()
    assert len(tape.client) > 500
    head.members.forget(node.keys.public)
    head.members.add(node.keys.public, "changed")  # what a join that counts would put back
    with tcp(head.door.port) as connection:
        connection.sendall(tape.client)
        assert is_cut_off(connection)
    assert [member.name for member in head.members.members] == ["changed"]
    assert head.join(new_node("other")).name == "other"


def test_what_passes_on_the_network_tells_no_secret(head: Head) -> None:
    node = new_node("a-name-to-look-for")
    tape = Tape(head.door.port)
    join_with_token(HOSTS, tape.port, head.token, node, seconds=PATIENCE)
    tape.wait()
    passed = tape.client + tape.server
    for secret in (node.name, node.keys.public, node.keys.secret, head.token.joining.secret, head.token.joining.public):
        assert secret.encode() not in passed


def test_a_port_that_is_taken_is_not_insisted_on(tmp_path: Path) -> None:
    fleet = FleetIdentity.load_or_create(tmp_path)
    members = Members(tmp_path, fleet.keys.public)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        doors = [Door(fleet, members, CONTROL, host="127.0.0.1", port=port), Door(fleet, members, port - 1)]
        assert not {door.port for door in doors} & {0, port}
        for door in doors:
            door.close()


def test_a_closed_door_leaves_nothing_behind(tmp_path: Path) -> None:
    fleet = FleetIdentity.load_or_create(tmp_path)
    before = set(threading.enumerate())
    door = Door(fleet, Members(tmp_path, fleet.keys.public), CONTROL, host="127.0.0.1", port=0)
    door.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    socket.create_server(("127.0.0.1", door.port)).close()


def test_an_address_that_is_not_ours_is_an_error(tmp_path: Path) -> None:
    fleet = FleetIdentity.load_or_create(tmp_path)
    with pytest.raises(ConfigurationError, match=r"192\.0\.2\.1"):
        Door(fleet, Members(tmp_path, fleet.keys.public), CONTROL, host="192.0.2.1")
