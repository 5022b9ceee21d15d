"""The sockets of a chain: each end pulls from the one before it and pushes to the one after it.

Loopback ports are open to every local user, so each receiving socket is a CURVE server that lets in exactly one public
key: that of the end which is meant to send to it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import zmq
from pydantic import BaseModel, ConfigDict, Field
from zmq.utils import z85

from shards.errors import StageError

_LOOPBACK = "tcp://127.0.0.1"
_WAITING = 8
"""Frames a socket holds before its sender has to wait."""

_ZAP = "inproc://zeromq.zap.01"


class KeyPair(BaseModel):
    """A CURVE key pair, Z85 text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    public: str = Field(min_length=40, max_length=40)
    secret: str = Field(min_length=40, max_length=40, repr=False)

    @classmethod
    def new(cls) -> KeyPair:
        """Make a pair."""
        public, secret = zmq.curve_keypair()
        return cls(public=public.decode(), secret=secret.decode())


class Peer(BaseModel):
    """Where frames go, and who must be listening there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint: str
    public: str = Field(min_length=40, max_length=40)


class Receiver:
    """The socket frames arrive on. It may change threads before its first use; after that one thread owns it.

    Args:
        context: The ZeroMQ context of this end.
        keys: Of this end.
        welcome: Public key of the only end that may send.
        part_bytes: Senders of larger message parts are cut off.
        doorman: Of another receiver in the same context, if there is one.

    Raises:
        StageError: this computer has no loopback port left.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: KeyPair,
        welcome: str,
        part_bytes: int,
        doorman: Doorman | None = None,
    ) -> None:
        self.doorman = doorman or Doorman(context)
        self.socket = _socket(context, zmq.PULL, keys)
        self.socket.curve_server = True
        self.socket.zap_domain = self.doorman.let_in(welcome)
        self.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a doorman nobody gets in
        self.socket.rcvhwm = _WAITING
        self.socket.maxmsgsize = part_bytes
        try:
            self.socket.bind(f"{_LOOPBACK}:*")
        except zmq.ZMQError as error:
            raise StageError(f"cannot listen on a loopback port ({error})", where=_LOOPBACK) from None
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def receive(self) -> list[bytes]:
        """Wait for the next message.

        Parts are copied out of ZeroMQ's own buffers, where they begin at any odd address.

        Raises:
            zmq.ContextTerminated: the link is closing.
        """
        return self.socket.recv_multipart()

    def receive_nowait(self) -> list[bytes] | None:
        """The next message if one is there."""
        try:
            return self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def close(self) -> None:
        """Close the socket; from its own thread."""
        self.socket.close(linger=0)


class Sender:
    """The socket frames leave by. It may change threads before its first use; after that one thread owns it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: KeyPair, peer: Peer) -> None:
        self.socket = _socket(context, zmq.PUSH, keys)
        self.socket.curve_serverkey = peer.public.encode()
        self.socket.sndhwm = _WAITING
        self.socket.immediate = True  # a frame waits here until there is a connection, not in a queue to nowhere
        self.socket.connect(peer.endpoint)

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send a message, waiting while the receiver is `_WAITING` messages behind.

        Parts are copied, once: engines reuse the memory of their outputs.

        Raises:
            zmq.ContextTerminated: the link is closing.
        """
        self.socket.send_multipart(parts)

    @property
    def is_ready(self) -> bool:
        """Whether `send` would not wait."""
        return bool(int(self.socket.get(zmq.EVENTS)) & zmq.POLLOUT)

    def close(self) -> None:
        """Close the socket; from its own thread."""
        self.socket.close(linger=0)


class Doorman:
    """Answers ZeroMQ's authentication requests (RFC 27, ZAP) in a context: to each receiver one public key may come in.

    It runs a thread until the context is terminated. pyzmq's own authenticator needs an asyncio loop, which on
    Windows is of the wrong kind.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._welcome: dict[bytes, bytes] = {}
        """The key that may come in, by ZAP domain; each receiver has its own."""
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ZAP)
        threading.Thread(target=self._serve, name="doorman", daemon=True).start()

    def let_in(self, welcome: str) -> bytes:
        """Let a public key in to a receiver; returns the ZAP domain the receiver must have."""
        domain = b"receiver %d" % len(self._welcome)
        self._welcome[domain] = z85.decode(welcome.encode())
        return domain

    def _serve(self) -> None:
        try:
            while True:
                version, request, domain, _address, _identity, mechanism, *credentials = self._socket.recv_multipart()
                known = mechanism == b"CURVE" and credentials == [self._welcome.get(domain)]
                status, text = (b"200", b"OK") if known else (b"400", b"unknown key")
                self._socket.send_multipart([version, request, status, text, b"", b""])
        except zmq.ContextTerminated:
            pass
        finally:
            self._socket.close()


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, keys: KeyPair) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.linger = 0
    socket.ipv6 = False
    socket.curve_publickey = keys.public.encode()
    socket.curve_secretkey = keys.secret.encode()
    return socket
