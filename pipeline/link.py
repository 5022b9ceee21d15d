"""The sockets of a chain: each end pulls from the one before it and pushes to the one after it.

Ports are open to every user and, in a fleet, to the network, so each receiving socket is a CURVE server that lets in
exactly one public key: that of the end which is meant to send to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import zmq
from pydantic import BaseModel, ConfigDict, Field

from pipeline.doorman import Doorman
from shards.errors import StageError

_WAITING = 8
"""Frames a socket holds before its sender has to wait."""

_CURVE_BYTES = 33
"""What encryption adds to a part on the wire, where its size is checked (RFC 26/CURVEZMQ: name, nonce, flags, MAC)."""


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

    host: str = Field(description="an IP address; between agents, whatever they call a computer")
    port: int = Field(ge=1, le=65535)
    public: str = Field(min_length=40, max_length=40)

    @property
    def endpoint(self) -> str:
        """The address for ZeroMQ."""
        return endpoint(self.host, self.port)


class Receiver:
    """The socket frames arrive on. It may change threads before its first use; after that one thread owns it.

    Args:
        context: The ZeroMQ context of this end.
        keys: Of this end.
        welcome: Public key of the only end that may send.
        part_bytes: Senders of larger message parts are cut off.
        interface: Address to listen on; `*` is every one.
        doorman: Of another receiver in the same context, if there is one.

    Raises:
        StageError: there is no port left.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: KeyPair,
        welcome: str,
        part_bytes: int,
        interface: str,
        doorman: Doorman | None = None,
    ) -> None:
        self.doorman = doorman or Doorman(context)
        self.socket = curve_socket(context, zmq.PULL, keys)
        self.socket.curve_server = True
        self.socket.zap_domain = self.doorman.let_in(welcome)
        self.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a doorman nobody gets in
        self.socket.rcvhwm = _WAITING
        self.socket.maxmsgsize = part_bytes + _CURVE_BYTES
        try:
            self.socket.bind(endpoint(interface, "*"))
        except zmq.ZMQError as error:
            self.socket.close()
            raise StageError(f"cannot listen on a port ({error})", where=interface) from None
        self.port = port_of(self.socket)

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

    @property
    def is_ready(self) -> bool:
        """Whether `receive` would not wait."""
        return bool(int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def close(self) -> None:
        """Close the socket; from its own thread."""
        self.socket.close(linger=0)


class Sender:
    """The socket frames leave by. It may change threads before its first use; after that one thread owns it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: KeyPair, peer: Peer) -> None:
        self.socket = curve_socket(context, zmq.PUSH, keys)
        self.socket.curve_serverkey = peer.public.encode()
        self.socket.sndhwm = _WAITING
        self.socket.immediate = True  # a frame waits here until there is a connection, not in a queue to nowhere
        try:
            self.socket.connect(peer.endpoint)
        except zmq.ZMQError as error:
            self.socket.close()
            raise StageError(f"cannot connect ({error})", where=peer.endpoint) from None

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send a message, waiting while the receiver is `_WAITING` messages behind.

        Parts are copied, once: engines reuse the memory of their outputs.

        Raises:
            zmq.ContextTerminated: the link is closing.
        """
        *others, last = parts
        for part in others:
            self.socket.send(part, zmq.SNDMORE)
        self.socket.send(last)

    @property
    def is_ready(self) -> bool:
        """Whether `send` would not wait."""
        return bool(int(self.socket.get(zmq.EVENTS)) & zmq.POLLOUT)

    def close(self) -> None:
        """Close the socket; from its own thread."""
        self.socket.close(linger=0)


def endpoint(host: str, port: int | str) -> str:
    """What ZeroMQ calls an address and port."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def port_of(socket: zmq.Socket[bytes]) -> int:
    """The port a socket listens on."""
    return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])


def curve_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, keys: KeyPair) -> zmq.Socket[bytes]:
    """A socket for IPv6 and IPv4 with these keys, which drops what is unsent when it is closed."""
    socket = context.socket(kind)
    socket.linger = 0
    socket.ipv6 = True  # as well as IPv4
    socket.curve_publickey = keys.public.encode()
    socket.curve_secretkey = keys.secret.encode()
    return socket
