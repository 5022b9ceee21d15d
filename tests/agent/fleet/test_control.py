from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any

import pytest
import zmq

from agent.fleet.control import versions
from agent.fleet.control.control_client import ClientEvent, ControlClient, Entered, Lost, Out, Told, Waiting
from agent.fleet.control.control_server import ControlServer, NodeEvent, NodeJoined, NodeLeft, NodeSaid
from agent.fleet.control.messages import (
    MAX_BYTES,
    PROTOCOL,
    CloseStage,
    Condition,
    Directory,
    FromNode,
    Goodbye,
    Hardware,
    Heartbeat,
    Hello,
    MeasureLinks,
    Refused,
    TaskFailed,
    TaskProgress,
    ToNode,
    Welcome,
    encode,
    to_node,
)
from agent.fleet.trust.sockets import client, listen
from pipeline.doorman import Doorman
from pipeline.link import KeyPair, endpoint, port_of
from shards.errors import ConfigurationError

HOST = "127.0.0.1"
HEARTBEAT = 0.1
PATIENCE = 60.0
CONDITION = Condition(memory_free=2, memory_allowed=1, disk_free=3)


def hello(name: str = "desk", instance: str = "1") -> Hello:
    return Hello(
        name=name,
        instance=instance,
        versions=versions.own(),
        hardware=Hardware(processor="any", cores=2, memory=4, devices=(), is_laptop=False),
        condition=CONDITION,
        addresses=("192.0.2.1",),
        bulk_port=1,
    )


class Events(list[Any]):
    """What a thread reports, for another that waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._more = threading.Condition()

    def add(self, event: object) -> None:
        with self._more:
            self.append(event)
            self._more.notify_all()

    def wait(self, wanted: Callable[[Events], bool]) -> None:
        with self._more:
            assert self._more.wait_for(lambda: wanted(self), PATIENCE), list(self)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self if isinstance(event, kind)]

    def wait_for(self, kind: type, count: int = 1) -> Any:
        self.wait(lambda events: len(events.of(kind)) >= count)
        return self.of(kind)[count - 1]


class Fleet:
    """A head, and nodes and others that want to come in."""

    def __init__(self) -> None:
        self.keys, self.members, self.knocked = KeyPair.new(), set[str](), Events()
        self.events = Events()
        self.server: ControlServer | None = None
        self.clients: list[ControlClient] = []
        self.context = zmq.Context[zmq.Socket[bytes]]()
        self.sockets: list[zmq.Socket[bytes]] = []
        self.port = 0

    def start(self, host: str = HOST, **periods: float) -> ControlServer:
        self.server = ControlServer(
            self.keys,
            self.may_enter,
            self.members.__contains__,
            "home",
            self.events.add,
            host=host,
            port=self.port,
            **({"heartbeat": HEARTBEAT} | periods),
        )
        self.port = self.server.port
        return self.server

    def may_enter(self, key: str, address: str) -> bool:
        self.knocked.add((key, address))
        return key in self.members

    def new_member(self) -> KeyPair:
        keys = KeyPair.new()
        self.members.add(keys.public)
        return keys

    def node(
        self, keys: KeyPair | None = None, make_hello: Callable[[], Hello] = hello, **periods: float
    ) -> tuple[ControlClient, Events]:
        events = Events()
        node = ControlClient(
            keys or self.new_member(),
            self.keys.public,
            HOST,
            self.port,
            make_hello,
            lambda: CONDITION,
            events.add,
            **({"heartbeat": HEARTBEAT} | periods),
        )
        self.clients.append(node)
        return node, events

    def raw(self, keys: KeyPair | None = None) -> zmq.Socket[bytes]:
        """A member that speaks as it likes."""
        socket = client(self.context, zmq.DEALER, keys or self.new_member(), self.keys.public, max_bytes=MAX_BYTES)
        self.sockets.append(socket)
        socket.rcvtimeo = round(PATIENCE * 1000)
        socket.connect(endpoint(HOST, self.port))
        return socket

    def close(self) -> None:
        for node in self.clients:
            node.close()
        if self.server:
            self.server.close()
        for socket in self.sockets:
            socket.close()
        self.context.term()


def ask(socket: zmq.Socket[bytes], message: FromNode | bytes) -> ToNode:
    """Send a message; returns the answer."""
    socket.send(message if isinstance(message, bytes) else encode(message))
    return answer(socket)


def answer(socket: zmq.Socket[bytes]) -> ToNode:
    """The next message that is no heartbeat."""
    while isinstance(message := to_node(socket.recv()), Heartbeat):
        pass
    return message


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(("control", "doorman"))}


@pytest.fixture
def empty() -> Iterator[Fleet]:
    before = threads()
    fleet = Fleet()
    yield fleet
    fleet.close()
    until = monotonic() + PATIENCE
    while threads() - before and monotonic() < until:  # a doorman ends a moment after its context
        sleep(0.01)
    assert threads() <= before


@pytest.fixture
def fleet(empty: Fleet) -> Fleet:
    empty.start()
    return empty


def test_a_node_joins_talks_and_leaves(fleet: Fleet) -> None:
    assert fleet.server
    keys = fleet.new_member()
    node, heard = fleet.node(keys)
    assert heard.wait_for(Entered).welcome == Welcome(fleet="home", name="desk")
    assert fleet.events.wait_for(NodeJoined) == NodeJoined(keys.public, "desk", hello(), HOST)
    orders = [MeasureLinks(task=str(i), peers=()) for i in range(500)]
    reports = [TaskProgress(task="t", what="it", done=i, total=500) for i in range(500)]
    for order, report in zip(orders, reports, strict=True):
        fleet.server.tell(keys.public, order)
        node.tell(report)
    heard.wait_for(Told, 500)
    assert [told.message for told in heard.of(Told)] == orders
    beat = Heartbeat(condition=CONDITION)
    fleet.events.wait(lambda events: NodeSaid(keys.public, beat) in events)
    fleet.events.wait(lambda events: len([e for e in events.of(NodeSaid) if e.message != beat]) >= 500)
    assert [said.message for said in fleet.events.of(NodeSaid) if said.message != beat] == reports
    node.close()
    assert fleet.events.wait_for(NodeLeft) == NodeLeft(keys.public, "its agent was ended")
    assert fleet.events[0] == NodeJoined(keys.public, "desk", hello(), HOST)
    assert not heard.of(Lost)


def test_the_address_of_a_node_is_plain_where_the_head_hears_ipv6_too(empty: Fleet) -> None:
    empty.start(host="*")
    _, heard = empty.node()
    heard.wait_for(Entered)
    assert empty.events.wait_for(NodeJoined).address == HOST
    assert {address for _, address in empty.knocked} == {HOST}


def test_what_is_told_just_before_the_end_is_heard(fleet: Fleet) -> None:
    node, heard = fleet.node()
    heard.wait_for(Entered)
    node.tell(TaskFailed(task="t", what="the last"))
    node.close()
    assert fleet.events.wait_for(NodeSaid).message == TaskFailed(task="t", what="the last")
    fleet.events.wait_for(NodeLeft)


def test_to_those_who_are_not_in_nothing_is_said(fleet: Fleet) -> None:
    assert fleet.server
    fleet.server.tell(KeyPair.new().public, CloseStage(stage="s"))
    fleet.server.drop(KeyPair.new().public, "why not")
    stranger, heard = fleet.node(KeyPair.new())
    stranger.tell(TaskFailed(task="t", what="too early"))
    heard.wait_for(Waiting)
    _, friend = fleet.node()
    friend.wait_for(Entered)
    assert fleet.events.of(NodeSaid) == []


def test_approval_takes_effect_while_a_node_waits(fleet: Fleet) -> None:
    keys = KeyPair.new()
    _, heard = fleet.node(keys)
    assert heard.wait_for(Waiting).for_approval
    fleet.knocked.wait_for(tuple, 3)
    assert set(fleet.knocked) == {(keys.public, HOST)}
    assert fleet.events == []
    fleet.members.add(keys.public)
    heard.wait_for(Entered)
    assert len(heard) == 2  # it was told once that it waits


def test_a_node_that_is_dropped_gives_up(fleet: Fleet) -> None:
    assert fleet.server
    keys = fleet.new_member()
    _, heard = fleet.node(keys)
    heard.wait_for(Entered)
    fleet.server.drop(keys.public, "it was forgotten", "Ask for it.")
    assert heard.wait_for(Out).refused == Refused(what="it was forgotten", hint="Ask for it.")
    assert fleet.events.wait_for(NodeLeft) == NodeLeft(keys.public, "it was forgotten")


def test_a_node_whose_key_is_forgotten_is_out_at_its_next_word(fleet: Fleet) -> None:
    keys = fleet.new_member()
    node, heard = fleet.node(keys)
    heard.wait_for(Entered)
    fleet.members.remove(keys.public)
    node.tell(TaskFailed(task="t", what="still here"))
    heard.wait_for(Out)
    assert fleet.events.wait_for(NodeLeft).key == keys.public
    assert TaskFailed(task="t", what="still here") not in [said.message for said in fleet.events.of(NodeSaid)]


def test_what_a_forgotten_key_says_on_its_open_connection_is_not_heeded(fleet: Fleet) -> None:
    keys = fleet.new_member()
    socket = fleet.raw(keys)
    assert isinstance(ask(socket, hello()), Welcome)
    fleet.members.remove(keys.public)
    assert isinstance(ask(socket, TaskFailed(task="t", what="still here")), Refused)
    fleet.events.wait_for(NodeLeft)
    socket.send(encode(hello()))
    _, friend = fleet.node()
    friend.wait_for(Entered)
    assert [type(event) for event in fleet.events[:3]] == [NodeJoined, NodeLeft, NodeJoined]


def test_one_whose_connection_broke_without_a_word_has_left(fleet: Fleet) -> None:
    socket = fleet.raw()
    assert isinstance(ask(socket, hello()), Welcome)
    socket.close()
    assert "broke" in fleet.events.wait_for(NodeLeft).why


def test_one_that_is_silent_is_lost(empty: Fleet) -> None:
    empty.start(lost=0.5)
    keys = empty.new_member()
    socket = empty.raw(keys)
    assert isinstance(ask(socket, hello()), Welcome)
    assert "0.5 seconds" in empty.events.wait_for(NodeLeft).why
    assert isinstance(answer(socket), Goodbye)
    # coming back needs another Hello
    socket.send(encode(Heartbeat(condition=CONDITION)))
    assert isinstance(ask(socket, hello()), Welcome)
    assert [type(event) for event in empty.events[:3]] == [NodeJoined, NodeLeft, NodeJoined]


def test_a_silent_head_is_lost_and_found_again(empty: Fleet) -> None:
    empty.start()
    _, heard = empty.node(lost=0.5)
    heard.wait_for(Entered)
    assert empty.server
    empty.server.close()
    assert heard.wait_for(Lost).why == "the head is closing"
    waiting = heard.wait_for(Waiting)
    assert not waiting.for_approval
    assert str(empty.port) in waiting.why
    empty.start()
    assert heard.wait_for(Entered, 2)
    assert [type(event) for event in empty.events] == [NodeJoined, NodeLeft, NodeJoined]


@pytest.mark.parametrize("answers", [True, False])
def test_a_head_that_is_silent_is_not_waited_for(empty: Fleet, answers: bool) -> None:
    context = zmq.Context[zmq.Socket[bytes]]()
    everybody = Doorman(context).guard(lambda *_: True)
    head = listen(context, zmq.ROUTER, empty.keys, domain=everybody, max_bytes=MAX_BYTES, host=HOST)
    empty.port = port_of(head)
    _, heard = empty.node(lost=0.5)
    route, _ = head.recv_multipart()
    if answers:
        head.send_multipart([route, encode(Welcome(fleet="home", name="desk"))])
        heard.wait_for(Entered)
    assert "0.5 seconds" in heard.wait_for(Lost if answers else Waiting).why
    head.close()
    context.term()


def test_the_head_of_another_fleet_is_not_talked_to(fleet: Fleet) -> None:
    other = Fleet()
    other.port = fleet.port
    _, heard = other.node(fleet.new_member())
    assert "not the head of this fleet" in heard.wait_for(Waiting).why
    other.close()
    assert fleet.events == []


def test_an_address_that_is_none_is_only_waited_for(empty: Fleet) -> None:
    events = Events()
    node = ControlClient(
        KeyPair.new(), empty.keys.public, "no address", 1, hello, lambda: CONDITION, events.add, heartbeat=HEARTBEAT
    )
    empty.clients.append(node)
    assert "no address:1" in events.wait_for(Waiting).why


def test_joining_twenty_times_in_a_row_leaves_one(fleet: Fleet) -> None:
    keys = fleet.new_member()
    _, other = fleet.node(make_hello=lambda: hello("lamp", "0"))
    other.wait_for(Entered)
    for i in range(20):
        node, heard = fleet.node(keys, lambda i=i: hello(instance=f"run {i}"))
        heard.wait_for(Entered)
        assert [event.welcome.name for event in heard.of(Entered)] == ["desk"]
        if i < 19:
            node.close()
    fleet.events.wait_for(NodeJoined, 21)
    life = [type(event) for event in fleet.events if event.key == keys.public and not isinstance(event, NodeSaid)]
    assert life == [NodeJoined, NodeLeft] * 19 + [NodeJoined]


def test_a_restart_after_a_crash_is_in_at_once(fleet: Fleet) -> None:
    keys = fleet.new_member()
    for i in range(20):
        socket = fleet.raw(keys)
        assert ask(socket, hello(instance=f"run {i}")) == Welcome(fleet="home", name="desk")
        socket.close()
    fleet.events.wait_for(NodeLeft, 20)
    assert [type(event) for event in fleet.events] == [NodeJoined, NodeLeft] * 20


def test_a_restart_takes_the_place_of_one_that_does_not_answer(fleet: Fleet) -> None:
    keys = fleet.new_member()
    frozen = fleet.raw(keys)
    ask(frozen, hello())
    _, heard = fleet.node(keys, lambda: hello(instance="2"))
    assert heard.wait_for(Entered).welcome.name == "desk"
    assert [type(event) for event in fleet.events[:3]] == [NodeJoined, NodeLeft, NodeJoined]
    # should the first wake up, the second stays
    assert isinstance(ask(frozen, hello()), Goodbye)
    refused = answer(frozen)
    assert isinstance(refused, Refused)
    assert "desk at 127.0.0.1" in refused.what
    assert len(heard) == 1


def test_a_cloned_identity_is_refused_by_name(empty: Fleet) -> None:
    empty.start(heartbeat=0.5)
    keys = empty.new_member()
    _, first = empty.node(keys)
    first.wait_for(Entered)
    _, clone = empty.node(keys, lambda: hello("clone", "2"))
    refused = clone.wait_for(Out).refused
    assert "desk at 127.0.0.1" in refused.what
    assert "node.json" in str(refused.hint)
    assert len(first) == len(clone) == len(empty.events.of(NodeJoined)) == 1
    assert empty.events.of(NodeLeft) == []


def test_another_protocol_is_refused_naming_both_versions(fleet: Fleet) -> None:
    theirs = json.loads(encode(hello())) | {"new field": 1}
    theirs["versions"] |= {"edge_agent": "9.8.7", "protocol": PROTOCOL + 1}
    refused = ask(fleet.raw(), json.dumps(theirs).encode())
    assert isinstance(refused, Refused)
    assert refused.final
    for name in ("9.8.7", f"protocol {PROTOCOL + 1}", versions.own().edge_agent, f"protocol {PROTOCOL}"):
        assert name in refused.what
    assert fleet.events == []


def test_another_version_of_the_same_protocol_is_welcome(fleet: Fleet) -> None:
    other = versions.own().model_copy(update={"edge_agent": "9.8.7"})
    assert isinstance(ask(fleet.raw(), hello().model_copy(update={"versions": other})), Welcome)


@pytest.mark.parametrize(
    "noise", [b"", b"\xff" * 100, b"{}", b'{"kind":"welcome","fleet":"a","name":"b"}', b"[" * 10_000]
)
def test_noise_of_a_member_drops_it_and_nobody_else(
    fleet: Fleet, noise: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    keys = fleet.new_member()
    socket = fleet.raw(keys)
    for _ in range(1000):
        socket.send(noise)  # nobody's yet
    _, heard = fleet.node()
    heard.wait_for(Entered)
    with caplog.at_level(logging.WARNING):
        assert isinstance(ask(socket, hello(name="noisy")), Welcome)
        for _ in range(1000):
            socket.send(noise)
        socket.send_multipart([noise, noise])
        fleet.events.wait_for(NodeLeft)
    assert [event.key for event in fleet.events.of(NodeLeft)] == [keys.public]
    assert len(heard) == 1
    assert len(caplog.records) < 10


def test_a_flood_is_dropped_and_the_others_are_heard(fleet: Fleet) -> None:
    other, heard = fleet.node()
    heard.wait_for(Entered)
    message = TaskProgress(task="t", what="it", done=1, total=1)
    socket = fleet.raw()
    assert isinstance(ask(socket, hello("flood")), Welcome)
    for _ in range(5000):
        socket.send(encode(message))
    other.tell(TaskFailed(task="mine", what="it"))
    fleet.events.wait(lambda events: any(isinstance(e, NodeSaid) and e.message.kind == "task-failed" for e in events))
    assert fleet.events.of(NodeLeft) == []


def test_one_that_never_reads_is_dropped_and_the_others_are_served(empty: Fleet) -> None:
    server = empty.start()
    keys, friends = empty.new_member(), empty.new_member()
    deaf = empty.raw(keys)
    assert isinstance(ask(deaf, hello("deaf")), Welcome)
    _, heard = empty.node(friends)
    heard.wait_for(Entered)
    large = MeasureLinks(task="x" * 2**14, peers=())
    stop = threading.Event()

    def keep_alive() -> None:
        while not stop.wait(HEARTBEAT):
            deaf.send(encode(Heartbeat()), zmq.NOBLOCK)

    alive = threading.Thread(target=keep_alive)
    alive.start()
    for _ in range(4000):
        server.tell(keys.public, large)
    left = empty.events.wait_for(NodeLeft)
    stop.set()
    alive.join()
    assert left == NodeLeft(keys.public, "it does not read what it is sent")
    server.tell(friends.public, Directory(nodes=()))
    heard.wait_for(Told)


def test_sixteen_nodes_at_once(fleet: Fleet) -> None:
    nodes = [fleet.node(make_hello=lambda i=i: hello(instance=f"run {i}")) for i in range(16)]
    names = {heard.wait_for(Entered).welcome.name for _, heard in nodes}
    assert names == {"desk", *(f"desk-{i}" for i in range(2, 17))}
    for node, _ in nodes:
        node.close()
    fleet.events.wait_for(NodeLeft, 16)
    for key in fleet.members:
        life = [type(event) for event in fleet.events if event.key == key and not isinstance(event, NodeSaid)]
        assert life == [NodeJoined, NodeLeft]


def test_closing_the_head_tells_all(fleet: Fleet) -> None:
    nodes = [fleet.node() for _ in range(3)]
    for _, heard in nodes:
        heard.wait_for(Entered)
    assert fleet.server
    fleet.server.close()
    assert len(fleet.events.of(NodeLeft)) == 3
    for _, heard in nodes:
        assert heard.wait_for(Lost).why == "the head is closing"
    fleet.server.tell("x" * 40, CloseStage(stage="s"))  # goes nowhere
    fleet.server.close()


def test_a_defect_in_a_callback_ends_nothing(empty: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: NodeEvent | ClientEvent) -> None:
        raise ValueError("a defect")

    calls = iter([ValueError("a defect"), hello()])

    def make_hello() -> Hello:
        if isinstance(made := next(calls), Exception):
            raise made
        return made

    joined = empty.events
    server = ControlServer(
        empty.keys, lambda *_: True, lambda _: True, "home", lambda e: (joined.add(e), fail(e)), host=HOST
    )
    empty.server, empty.port = server, server.port
    _, heard = empty.node(make_hello=make_hello)
    assert "a defect" in heard.wait_for(Waiting).why
    heard.wait_for(Entered)
    joined.wait_for(NodeJoined)
    assert "defect of edge-agent" in caplog.text


def test_a_port_that_is_taken_is_said_and_leaves_nothing_behind(fleet: Fleet) -> None:
    with pytest.raises(ConfigurationError, match=str(fleet.port)):
        ControlServer(fleet.keys, lambda *_: True, lambda _: True, "home", print, host=HOST, port=fleet.port)
