"""The head's end of the control channel."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic

import zmq

from agent.fleet.control import versions
from agent.fleet.control.mailbox import Mailbox
from agent.fleet.control.messages import (
    HEARTBEAT_SECONDS,
    LOST_SECONDS,
    MAX_BEHIND,
    MAX_BYTES,
    Refused,
    ToNode,
    encode,
    from_node,
)
from agent.fleet.control.roster import (
    Action,
    Connection,
    Dropped,
    NodeEvent,
    NodeJoined,
    NodeLeft,
    NodeSaid,
    Roster,
    Tell,
)
from agent.fleet.trust.sockets import listen
from pipeline.doorman import Check, Doorman, plain
from pipeline.link import KeyPair, port_of
from shards.errors import WireError

__all__ = ["ControlServer", "NodeEvent", "NodeJoined", "NodeLeft", "NodeSaid"]

_TICKS = 5
"""Looks at the clock in a heartbeat."""

_AT_ONCE = 256
"""Messages read between two looks at the clock."""

_QUIET_SECONDS = 1.0
"""Least time between two warnings."""

_LINGER_SECONDS = 0.5
"""Time to send the last goodbyes."""

_log = logging.getLogger(__name__)


class ControlServer:
    """Keeps the control channel to all nodes, on a thread and a socket of its own. Other threads may use every method.

    Args:
        fleet_keys: Of the fleet.
        may_enter: Whether a key may connect from an address. Called on the doorman's thread; must be quick.
        is_member: Whether what a key says is heeded. Called for every message, on this object's thread; must be quick.
        fleet_name: What nodes are told they are in.
        events: Called with each event, on this object's thread; must be quick. Those of one node are in order, and to
            each NodeJoined there is one NodeLeft, at the latest when the server is closed.
        host: Address to listen on; `*` is every one.
        port: 0 is any that is free.
        heartbeat: Seconds between two heartbeats.
        lost: Seconds of silence after which a node counts as gone.

    Raises:
        ConfigurationError: the port is taken, or the address is not this PC's.
    """

    def __init__(
        self,
        fleet_keys: KeyPair,
        may_enter: Check,
        is_member: Callable[[str], bool],
        fleet_name: str,
        events: Callable[[NodeEvent], None],
        *,
        host: str = "*",
        port: int = 0,
        heartbeat: float = HEARTBEAT_SECONDS,
        lost: float = LOST_SECONDS,
    ) -> None:
        self._is_member, self._events = is_member, events
        self._roster = Roster(fleet_name, heartbeat, lost)
        self._patience = round(heartbeat * 1000 / _TICKS)
        self._orders: Mailbox[tuple[str, bytes | Refused] | None] = Mailbox()
        self._dropped, self._told = 0, -_QUIET_SECONDS
        self._context = zmq.Context[zmq.Socket[bytes]]()
        try:
            # final: the client's socket is told that it is the key which is refused
            domain = Doorman(self._context).guard(may_enter, final=True)
            self._socket = listen(
                self._context,
                zmq.ROUTER,
                fleet_keys,
                domain=domain,
                max_bytes=MAX_BYTES,
                outgoing=MAX_BEHIND,
                host=host,
                port=port,
            )
        except BaseException:
            self._orders.close()
            self._context.term()
            raise
        self._socket.router_mandatory = True  # sending says so when a node is gone, or does not read
        self.port = port_of(self._socket)
        self._thread = threading.Thread(target=self._run, name="control server", daemon=True)
        self._thread.start()

    def tell(self, node: str, message: ToNode) -> None:
        """Send a message to the node of a key. One that has left does not hear it."""
        self._orders.put((node, encode(message)))

    def drop(self, node: str, why: str, hint: str | None = None) -> None:
        """Shut a node out; its agent gives up. It could come again while its key may enter."""
        self._orders.put((node, Refused(what=why, hint=hint)))

    def close(self) -> None:
        """Say goodbye to all, and end. Not from a callback."""
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._orders, zmq.POLLIN)
        try:
            while True:
                poller.poll(self._patience)
                self._receive()  # first, so that a moment in which this thread had to wait makes no node look silent
                if not self._obey():
                    break
                self._do(self._roster.tick(monotonic()))
        finally:
            self._do(self._roster.close("the head is closing"))
            self._orders.close()
            self._socket.close(linger=round(_LINGER_SECONDS * 1000))
            self._context.term()

    def _obey(self) -> bool:
        """Do what other threads asked for; False: that was to end."""
        for order in self._orders.take():
            match order:
                case None:
                    return False
                case (node, Refused() as last):
                    self._do(self._roster.drop(node, last))
                case (node, bytes() as data):
                    if (connection := self._roster.connection(node)) and self._is_member(node):
                        self._do(self._send(connection, data))
        return True

    def _receive(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                route, *parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            # what the doorman has let in decides, not the route, which the other side can choose
            connection = Connection(str(parts[0].get("User-Id")), route.bytes)
            address = plain(str(parts[0].get("Peer-Address")))
            self._do(self._judge(connection, address, parts))

    def _judge(self, connection: Connection, address: str, parts: Sequence[zmq.Frame]) -> Sequence[Action]:
        now = monotonic()
        if not self._is_member(connection.key):
            why = "it is not a member of the fleet any more"
            return [Dropped(connection, why), *self._roster.drop(connection.key, Refused(what=why))]
        if objection := self._roster.objection(now, connection, sum(map(len, parts))):
            return [Dropped(connection, objection)]
        if len(parts) != 1:
            return self._roster.malformed(now, connection, f"a message has {len(parts)} parts")
        data = parts[0].bytes
        try:
            message = from_node(data)
        except WireError as error:
            if refused := versions.mismatch(data):
                return [Tell(connection, refused), Dropped(connection, refused.what)]
            return self._roster.malformed(now, connection, error.what)
        return self._roster.said(now, connection, address, message)

    def _do(self, actions: Sequence[Action]) -> None:
        todo = deque(actions)
        while todo:
            match todo.popleft():
                case Tell(to=connection, message=message):
                    todo += self._send(connection, encode(message))
                case Dropped(connection=connection, why=why):
                    self._warn(connection, why)
                case event:
                    self._report(event)

    def _send(self, connection: Connection, data: bytes) -> Sequence[Action]:
        """Send a message; returns what it leads to if that cannot be done."""
        try:
            self._socket.send_multipart([connection.route, data], zmq.NOBLOCK)
        except zmq.Again:
            return self._roster.unreachable(monotonic(), connection, "it does not read what it is sent")
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return self._roster.unreachable(monotonic(), connection, "its connection broke")
        return []

    def _report(self, event: NodeEvent) -> None:
        try:
            self._events(event)
        except Exception:
            _log.exception("a defect of edge-agent, please report it: an event of a node was not handled")

    def _warn(self, connection: Connection, why: str) -> None:
        self._dropped += 1
        now = monotonic()
        if now - self._told >= _QUIET_SECONDS:
            self._told = now
            some = f"{self._dropped} control message{'s' * (self._dropped > 1)}"
            _log.warning("dropped %s so far; the last, from %s: %s", some, connection.key, why)
