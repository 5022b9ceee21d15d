"""One connection of a node to its head, from the first packet to the end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import zmq
from zmq.utils.monitor import recv_monitor_message

from agent.fleet.control.messages import (
    MAX_BEHIND,
    MAX_BYTES,
    Condition,
    Goodbye,
    Heartbeat,
    Hello,
    Refused,
    ToNode,
    Welcome,
    encode,
    to_node,
)
from agent.fleet.trust.sockets import Context, client
from pipeline.link import KeyPair, endpoint
from shards.errors import WireError

_CONDITION_HEARTBEATS = 5
"""One of so many heartbeats carries the condition."""

_AT_ONCE = 256
"""Messages read between two looks at the clock."""

_LINGER_SECONDS = 0.5
"""Time to send the last goodbye."""

_ENDS = {
    zmq.Event.CLOSED: "no connection can be made",
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: "what listens there is not the head of this fleet",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "what listens there is not the head of this fleet",
    zmq.Event.DISCONNECTED: "the connection broke",
}
"""What a socket reports when its connection is over, or will not come about."""

_REPORTS = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.HANDSHAKE_FAILED_AUTH | sum(_ENDS)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entered:
    """The node is in."""

    welcome: Welcome


@dataclass(frozen=True, slots=True)
class Told:
    """The head said something, while the node was in: any message but Welcome, Refused, Heartbeat and Goodbye."""

    message: ToNode


@dataclass(frozen=True, slots=True)
class Waiting:
    """The node is not in, and tries again."""

    why: str
    for_approval: bool = False
    """The head does not know the node's key."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The node was in, and is not any more; it tries again."""

    why: str


@dataclass(frozen=True, slots=True)
class Out:
    """The head does not want this node; nothing more is tried."""

    refused: Refused


End = Waiting | Lost | Out
ClientEvent = Entered | Told | End


@dataclass(frozen=True, slots=True)
class Applicant:
    """Who connects, and what it has to say of itself."""

    keys: KeyPair
    make_hello: Callable[[], Hello]
    condition: Callable[[], Condition]


class ControlConnection:
    """A connection, used by one thread. Its methods return the event that ends it, as soon as there is one.

    ZeroMQ's own reconnecting is off: it does not follow every kind of refusal, and the head must hear a new Hello.

    Args:
        context: With nothing in particular.
        node: Whose connection it is.
        fleet: Public key of the fleet.
        host: IP address or name of the head.
        port: Its control port.
        events: Called with Entered and Told.
        heartbeat: Seconds between two heartbeats.
        lost: Seconds of silence after which the head counts as gone.
    """

    def __init__(
        self,
        context: Context,
        node: Applicant,
        fleet: str,
        host: str,
        port: int,
        events: Callable[[ClientEvent], None],
        heartbeat: float,
        lost: float,
    ) -> None:
        self._node, self._events, self._heartbeat, self._lost = node, events, heartbeat, lost
        self._host, self._port = host, port
        self._greeted = self._entered = False
        self._heard = monotonic()
        self._beats, self._next_beat = 0, 0.0
        self.socket = client(context, zmq.DEALER, node.keys, fleet, max_bytes=MAX_BYTES)
        self.socket.sndhwm = MAX_BEHIND
        self.socket.reconnect_ivl = -1
        self.monitor = self.socket.get_monitor_socket(_REPORTS)
        """Readable when there is news of the connection."""

    def open(self) -> End | None:
        """Begin to connect."""
        try:
            self.socket.connect(endpoint(self._host, self._port))
        except zmq.ZMQError as error:
            return self.end(f"this is no address ({error.strerror})")
        return None

    def hear(self) -> End | None:
        """Take in what has come, and look at the clock."""
        # what was said before the connection broke tells more than that it broke
        broken = self._hear_monitor()
        return self._hear_head() or broken or self._look_at_clock()

    def tell(self, message: bytes) -> End | None:
        """Send an encoded message, if the node is in."""
        return self._send(message) if self._entered else None

    def close(self, last: Goodbye | None = None) -> None:
        """Close the connection, after the last words if there are any."""
        if last and self._greeted:
            self._send(encode(last))
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=round(_LINGER_SECONDS * 1000) if last else 0)

    def end(self, why: str, what: str = "cannot be reached") -> Lost | Waiting:
        """The event that the connection is over, or will not come about."""
        return Lost(why) if self._entered else Waiting(f"the head at {self._host}:{self._port} {what}: {why}")

    def _hear_monitor(self) -> End | None:
        while self.monitor.poll(0):
            event = zmq.Event(recv_monitor_message(self.monitor)["event"])
            if event == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._greeted, self._heard = True, monotonic()
                if end := self._send(encode(self._node.make_hello())):
                    return end
            elif event == zmq.Event.HANDSHAKE_FAILED_AUTH:
                return Waiting(f"the head at {self._host}:{self._port} has yet to approve this PC", for_approval=True)
            else:
                return self.end(_ENDS[event])
        return None

    def _hear_head(self) -> End | None:
        for _ in range(_AT_ONCE):
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._heard = monotonic()
            try:
                message = to_node(b"".join(parts))
            except WireError as error:
                _log.warning("a message of the head was dropped: %s", error)
                continue
            if end := self._take(message):
                return end
        return None

    def _take(self, message: ToNode) -> End | None:
        match message:
            case Refused(final=True):
                return Out(message)
            case Refused(what=why) | Goodbye(why=why):
                return self.end(why, "does not let this PC in now")
            case Welcome() if not self._entered:
                self._entered = True
                self._events(Entered(message))
            case Welcome() | Heartbeat():
                pass
            case _ if self._entered:
                self._events(Told(message))
        return None

    def _look_at_clock(self) -> End | None:
        now = monotonic()
        if now - self._heard >= self._lost:
            return self.end(f"nothing was heard of it for {self._lost:g} seconds")
        if self._entered and now >= self._next_beat:
            self._next_beat = now + self._heartbeat
            self._beats += 1
            full = self._beats % _CONDITION_HEARTBEATS == 0
            return self._send(encode(Heartbeat(condition=self._node.condition() if full else None)))
        return None

    def _send(self, message: bytes) -> End | None:
        try:
            self.socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return self.end("it does not read what it is sent")
        return None
