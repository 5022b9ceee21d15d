"""A head, its nodes and raw members on loopback, and what they report."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import zmq

from agent.fleet.control import versions
from agent.fleet.control.control_client import ControlClient
from agent.fleet.control.control_server import ControlServer
from agent.fleet.control.messages import (
    MAX_BYTES,
    Condition,
    FromNode,
    Hardware,
    Heartbeat,
    Hello,
    ToNode,
    encode,
    to_node,
)
from agent.fleet.trust.sockets import client
from pipeline.link import KeyPair, endpoint

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


class ControlFleet:
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
