"""The side of bulk connections that answers: packages and their pieces, and echoes to measure links with."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

import zmq

from agent.fleet.bulk.bulk_messages import (
    REQUEST_BYTES,
    UNREADABLE,
    WINDOW,
    Answer,
    Request,
    WantEcho,
    WantHeld,
    WantManifest,
    WantSlice,
    encode,
    pack_held,
    read_request,
)
from agent.fleet.bulk.library import Library
from agent.fleet.bulk.pace import Pace
from agent.fleet.trust import sockets
from agent.fleet.trust.sockets import Context
from pipeline.doorman import Doorman, plain
from pipeline.link import KeyPair, port_of
from shards.errors import EdgeAgentError, PackageError
from shards.store import PackageStore

_AT_ONCE = 64
"""Requests read before one of those that wait is answered."""

_LONGEST_WAIT_SECONDS = 0.1
"""After which it is noticed that the pace has changed."""

_log = logging.getLogger(__name__)


class BulkServer:
    """Serves a library to the nodes of the fleet, in a thread.

    Each client has at most `WINDOW` requests waiting here and twice as many answers in its connection (ZeroMQ counts
    in halves); one that does not read them loses the rest. Clients take turns, slice by slice.

    Args:
        keys: Of this node.
        may_enter: Whether a public key, from an address, may come in. Asked at the door and again at each message, so
            a key that is forgotten is cut off; called from two threads, and often.
        library: What is served.
        host: Address to listen on; `*` is every one.
        port: 0 is any that is free.

    Raises:
        ConfigurationError: it cannot listen there.
    """

    def __init__(
        self, keys: KeyPair, may_enter: Callable[[str, str], bool], library: Library, host: str = "*", port: int = 0
    ) -> None:
        self.pace = Pace()
        """Of what is sent."""
        self._may_enter = may_enter
        self._library = library
        self._waiting: OrderedDict[bytes, deque[Request]] = OrderedDict()
        """By client; the first is next."""
        self._context = Context()
        try:
            self._socket = sockets.listen(
                self._context, zmq.ROUTER, keys, domain=Doorman(self._context).guard(may_enter),
                max_bytes=REQUEST_BYTES, waiting=2 * WINDOW, host=host, port=port,
            )  # fmt: skip
        except BaseException:
            self._context.term()
            raise
        self._socket.router_mandatory = True  # a full connection is an error, not a silent loss
        self.port = port_of(self._socket)
        self._thread = threading.Thread(target=self._serve, name="bulk server", daemon=True)
        self._thread.start()

    def set_busy(self, busy: bool) -> None:
        """Say whether tokens flow: while they do, pieces go at a share of the rate (see Pace)."""
        self.pace.busy = busy

    def close(self) -> None:
        """Stop serving."""
        self._context.term()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while True:
                wait = min(self.pace.wait(time.monotonic()), _LONGEST_WAIT_SECONDS)
                if self._socket.poll(math.ceil(wait * 1000) if self._waiting else None):
                    self._receive()
                if self._waiting and self.pace.wait(time.monotonic()) == 0:
                    self._answer_next()
        except zmq.ContextTerminated:
            pass
        finally:
            self._socket.close()

    def _receive(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                client, *parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            if parts and self._is_member(parts[-1]):
                self._take(client.bytes, parts[0].bytes if len(parts) == 1 else b"")

    def _is_member(self, frame: zmq.Frame) -> bool:
        return self._may_enter(str(frame.get("User-Id")), plain(str(frame.get("Peer-Address"))))

    def _take(self, client: bytes, message: bytes) -> None:
        try:
            request = read_request(message)
        except EdgeAgentError as error:
            _log.debug("%s", error)
            self._send(client, Answer(number=UNREADABLE, refusal=error.what))
            return
        if isinstance(request.want, WantEcho):
            self._send(client, Answer(number=request.number), bytes(request.want.size))
            return
        requests = self._waiting.setdefault(client, deque())
        if len(requests) == WINDOW:
            refusal = f"more than {WINDOW} requests at a time"
            self._send(client, Answer(number=request.number, refusal=refusal))
        else:
            requests.append(request)

    def _answer_next(self) -> None:
        """Answer one request of the client whose turn it is, and put the client last."""
        client, requests = self._waiting.popitem(last=False)
        request = requests.popleft()
        try:
            data = self._find(request)
        except (EdgeAgentError, OSError) as error:
            sent = self._send(client, Answer(number=request.number, refusal=str(error)[:500]))
        else:
            self.pace.spend(len(data), time.monotonic())
            sent = self._send(client, Answer(number=request.number), data)
        if sent and requests:
            self._waiting[client] = requests

    def _find(self, request: Request) -> bytes:
        want = request.want
        assert not isinstance(want, WantEcho)  # those are answered at once
        store = self._library.store(want.package_id)
        if store is None:
            raise PackageError("this node does not have the package")
        match want:
            case WantManifest():
                return store.manifest.model_dump_json().encode()
            case WantHeld():
                return pack_held(store.manifest, store.missing(store.all_pieces()))
            case WantSlice():
                return _slice(store, want)

    def _send(self, client: bytes, answer: Answer, data: bytes | None = None) -> bool:
        """Whether the client is there and reads."""
        parts = [client, encode(answer)] if data is None else [client, encode(answer), data]
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.ContextTerminated:
            raise
        except zmq.ZMQError as error:  # EHOSTUNREACH: it is gone; EAGAIN: it does not read
            _log.debug("an answer was dropped (%s)", error)
            return False
        return True


def _slice(store: PackageStore, want: WantSlice) -> bytes:
    """The bytes asked for, which are in a piece that is here; everything else raises PackageError."""
    piece = store.piece(want.path, want.index)
    if want.offset + want.length > piece.size:
        asked = f"{want.offset}-{want.offset + want.length - 1}"
        raise PackageError(f"piece {want.index} has {piece.size} bytes, {asked} were asked for", where=want.path)
    data = b"" if store.missing((piece,)) else store.read(piece, want.offset, want.length)
    if len(data) != want.length:
        raise PackageError(f"this node does not have piece {want.index}", where=want.path)
    return data
