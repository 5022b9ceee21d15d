"""Links that take their time: what the ends of a chain on this PC send one another arrives so much later.

Each link of a chain goes through a relay here, on loopback: from the head to the first stage, from stage to stage, from
the tail back to the head, and its echo to the first stage. What is on its way does not hold up what follows, so a link
is longer but not slower. What the head says to stages about void guesses, which is no frame, is held back as long.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from queue import SimpleQueue
from time import perf_counter, sleep

from pipeline.chain import start_here
from pipeline.control import Cancel, Connect, Echo, Measure, Start, ToStage
from pipeline.link import Peer
from pipeline.stage_child import StageChild
from pipeline.stages import LOOPBACK, Heard, Stage
from shards.errors import StageError

_PIECE_BYTES = 1 << 18
_POLL_SECONDS = 0.2
"""How often a relay nobody has connected to looks up: not every system wakes it when its socket is closed."""

_Pieces = SimpleQueue[tuple[float, bytes]]
"""When each is due at the other end, and what it is; nothing is the end."""


class Delays:
    """The links of one chain; give `start_stage` and `locate_first` to `Chain.start`, and close this after the chain.

    Args:
        seconds: How long everything is on its way, in either direction; 0: there are no relays.
        local_head: Whether head and first stage are taken for one PC, so that no link lies between them.
    """

    def __init__(self, seconds: float, *, local_head: bool = False) -> None:
        self.seconds, self.local_head = seconds, local_head
        self._relays: list[_Relay] = []

    def start_stage(self, index: int, name: str, task: Start, heard: Heard) -> Stage:
        """A StartStage: on this PC, behind such links."""
        if not self.seconds:
            return start_here(index, name, task, heard)
        return _FarStage(self, name, task, heard, is_local=self.local_head and index == 0)

    def locate_first(self, peer: Peer) -> Peer:
        """Where the head finds the first stage; raises as `locate`."""
        return peer if self.local_head else self.locate(peer)

    def locate(self, peer: Peer) -> Peer:
        """The near end of a new link to a peer.

        Raises:
            StageError: there is no port left.
        """
        if not self.seconds:
            return peer
        relay = _Relay(peer, self.seconds)
        self._relays.append(relay)
        return peer.model_copy(update={"host": LOOPBACK, "port": relay.port})

    def close(self) -> None:
        """End all links."""
        for relay in self._relays:
            relay.close()


class _FarStage(StageChild):
    """A stage process that is told of the near ends of links instead of its neighbours."""

    def __init__(
        self, delays: Delays, name: str, task: Start | Measure, heard: Heard, *, is_local: bool = False
    ) -> None:
        self._delays, self._is_local = delays, is_local
        super().__init__(name, task, heard)

    def tell(self, message: ToStage) -> None:
        match message:
            case Connect(next=peer):
                message = message.model_copy(update={"next": self._delays.locate(peer)})
            case Echo(first=peer):
                message = message.model_copy(update={"first": self._delays.locate(peer)})
            case Cancel() if not self._is_local:
                later = threading.Timer(self._delays.seconds, super().tell, (message,))
                later.daemon = True
                later.start()
                return
        super().tell(message)


class _Relay:
    """Passes on what one connection carries, in both directions."""

    def __init__(self, peer: Peer, seconds: float) -> None:
        self._peer, self._seconds = peer, seconds
        self._ends: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_closed = False
        try:
            self._listener = socket.create_server((LOOPBACK, 0))
        except OSError as error:
            raise StageError(f"cannot listen on a port ({error})", where=LOOPBACK) from None
        self._listener.settimeout(_POLL_SECONDS)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._connect, name="delayed link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for end in self._ends:
                _hang_up(end)
        self._thread.join()

    def _connect(self) -> None:
        """Wait for the one who is to connect, then be the way to the peer. A chain connects each link once."""
        with self._listener:
            near = self._accept()
        if near is None:
            return
        with near:
            try:
                far = socket.create_connection((self._peer.host, self._peer.port))
            except OSError:  # the peer has ended, which its chain hears from itself
                return
            with far:
                with self._lock:
                    self._ends += [near, far]
                    if self._is_closed:
                        return
                for end in (near, far):
                    end.setblocking(True)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ways = [
                    threading.Thread(target=_carry, args=(*way, self._seconds), name="delayed link", daemon=True)
                    for way in ((near, far), (far, near))
                ]
                for thread in ways:
                    thread.start()
                for thread in ways:
                    thread.join()
                with self._lock:
                    self._ends.clear()

    def _accept(self) -> socket.socket | None:
        while not self._is_closed:
            try:
                return self._listener.accept()[0]
            except TimeoutError:
                continue
        return None


def _carry(source: socket.socket, sink: socket.socket, seconds: float) -> None:
    """Pass on everything, each piece `seconds` after it came, until the source ends."""
    pieces: _Pieces = SimpleQueue()
    deliverer = threading.Thread(target=_deliver, args=(pieces, sink), name="delayed link", daemon=True)
    deliverer.start()
    piece = b"-"
    while piece:
        try:
            piece = source.recv(_PIECE_BYTES)
        except OSError:
            piece = b""
        pieces.put((perf_counter() + seconds, piece))
    deliverer.join()


def _deliver(pieces: _Pieces, sink: socket.socket) -> None:
    while True:
        due, piece = pieces.get()
        sleep(max(0.0, due - perf_counter()))
        if not piece:
            return _hang_up(sink)
        try:
            sink.sendall(piece)
        except OSError:  # nobody reads any more
            return _hang_up(sink)


def _hang_up(end: socket.socket) -> None:
    """Wake who reads or writes there."""
    with suppress(OSError):  # it has ended already
        end.shutdown(socket.SHUT_RDWR)
