"""A node's end of the control channel."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic

import zmq

from agent.fleet.control.control_connection import (
    Applicant,
    ClientEvent,
    ControlConnection,
    End,
    Entered,
    Lost,
    Out,
    Told,
    Waiting,
)
from agent.fleet.control.mailbox import Mailbox
from agent.fleet.control.messages import HEARTBEAT_SECONDS, LOST_SECONDS, Condition, FromNode, Goodbye, Hello, encode
from pipeline.link import KeyPair

__all__ = ["ClientEvent", "ControlClient", "Entered", "Lost", "Out", "Told", "Waiting"]

_TICKS = 5
"""Looks at the clock in a heartbeat."""

_PAUSE_SECONDS = 0.25
"""Before the head is tried again; twice as long each time, up to the longest."""
_LONGEST_PAUSE_SECONDS = 4.0
_APPROVAL_PAUSE_SECONDS = 1.0
"""The same while someone has to approve: that takes effect so soon."""

_log = logging.getLogger(__name__)


class ControlClient:
    """Keeps the control channel to the head, on a thread of its own, until it is closed or the head says no.

    Args:
        keys: Of the node.
        fleet: Public key of the fleet; nobody else is talked to.
        host: IP address or name of the head.
        port: Its control port.
        make_hello: What to present; asked for at each connection. On this object's thread, like the next two.
        condition: How the PC is doing; must be quick.
        events: Called with each event; must be quick. A Waiting is told again only when it differs.
        heartbeat: Seconds between two heartbeats.
        lost: Seconds of silence after which the head counts as gone.
    """

    def __init__(
        self,
        keys: KeyPair,
        fleet: str,
        host: str,
        port: int,
        make_hello: Callable[[], Hello],
        condition: Callable[[], Condition],
        events: Callable[[ClientEvent], None],
        *,
        heartbeat: float = HEARTBEAT_SECONDS,
        lost: float = LOST_SECONDS,
    ) -> None:
        self._node, self._events = Applicant(keys, make_hello, condition), events
        self._fleet, self._host, self._port = fleet, host, port
        self._heartbeat, self._lost = heartbeat, lost
        self._mailbox: Mailbox[bytes | None] = Mailbox()
        self._closing = False
        self._context = zmq.Context[zmq.Socket[bytes]]()
        self._thread = threading.Thread(target=self._run, name="control client", daemon=True)
        self._thread.start()

    def tell(self, message: FromNode) -> None:
        """Send a message; from any thread. While the node is not in, it goes nowhere."""
        self._mailbox.put(encode(message))

    def close(self) -> None:
        """Say goodbye, and end. From any thread, but not from a callback."""
        self._mailbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        pause = _PAUSE_SECONDS
        last: End | None = None
        try:
            while not self._closing and (end := self._stay()):
                if end != last or isinstance(end, Lost):
                    self._report(end)
                if isinstance(end, Out):
                    break
                if isinstance(end, Lost):
                    pause = _PAUSE_SECONDS
                awaits_approval = isinstance(end, Waiting) and end.for_approval
                self._rest(_APPROVAL_PAUSE_SECONDS if awaits_approval else pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                last = end
        finally:
            self._mailbox.close()
            self._context.term()

    def _stay(self) -> End | None:
        """Connect, and stay so; returns how that ended, or None: this client is to close."""
        connection = ControlConnection(
            self._context, self._node, self._fleet, self._host, self._port, self._report, self._heartbeat, self._lost
        )
        poller = zmq.Poller()
        for readable in (connection.socket, connection.monitor, self._mailbox):
            poller.register(readable, zmq.POLLIN)
        last_words = None
        try:
            end = connection.open()
            while not end and not self._closing:
                poller.poll(round(self._heartbeat * 1000 / _TICKS))
                end = connection.hear()
                for message in self._messages():
                    end = end or connection.tell(message)
            if not end:
                last_words = Goodbye(why="its agent was ended")
            return end
        except Exception as error:  # of what describes this PC
            _log.exception("a defect of edge-agent, please report it: the connection to the head ended")
            return connection.end(f"{type(error).__name__}: {error}")
        finally:
            connection.close(last_words)

    def _rest(self, seconds: float) -> None:
        poller = zmq.Poller()
        poller.register(self._mailbox, zmq.POLLIN)
        until = monotonic() + seconds
        while not self._closing and (left := until - monotonic()) > 0:
            poller.poll(int(left * 1000) + 1)
            self._messages()

    def _messages(self) -> list[bytes]:
        """What others want to be sent; notices that this client is to close."""
        items = self._mailbox.take()
        self._closing |= None in items
        return [item for item in items if item is not None]

    def _report(self, event: ClientEvent) -> None:
        try:
            self._events(event)
        except Exception:
            _log.exception("a defect of edge-agent, please report it: an event of the head was not handled")
