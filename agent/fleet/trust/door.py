"""Joining with a token: the node asks at the head's door with the joining key, and is a member from then on.

The request names the node's own public key, and nothing proves that the one who asks has its secret: a lie would gain
nothing. The token is good for letting any key in; a key that is let in must still prove itself on every connection,
and its owner must still choose this fleet. Nor is anything changed for a key that is known: a member keeps its name,
and one that was shut out is not let in here.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Annotated, Literal

import zmq
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from zmq.utils.monitor import recv_monitor_message

from agent.fleet.control import versions
from agent.fleet.control.mailbox import Mailbox
from agent.fleet.control.messages import PROTOCOL, Name, Port
from agent.fleet.trust import sockets
from agent.fleet.trust.allowance import Allowance
from agent.fleet.trust.identity import FleetIdentity, NodeIdentity
from agent.fleet.trust.members import Members, PublicKey, code_of
from agent.fleet.trust.token import Token
from pipeline.doorman import Doorman
from pipeline.link import endpoint, port_of
from shards.errors import ConfigurationError, EdgeAgentError

MAX_BYTES = 4096
"""Largest message at the door."""

JOIN_SECONDS = 10.0

_REQUESTS = 32
_REQUESTS_PER_SECOND = 2.0
_LOGGED_KEYS = 32
"""Newest keys that are not logged again."""
_LOG_LINES = 4
_LOG_LINES_PER_SECOND = 1 / 60
"""Keys cost nothing: who tries with ever new ones neither fills the log nor keeps others out of it for good."""

_REACH = "Is the head running, is this its address, and does its firewall let this port through?"
_OTHER_HEAD = "Take the token of the head that is there (edge-agent token), or give the address of the token's own."

_log = logging.getLogger(__name__)


class _Message(BaseModel):
    # fields of later versions are skipped, so that a mismatch can be told in words
    model_config = ConfigDict(frozen=True, extra="ignore")


class JoinRequest(_Message):
    """A node asks to become a member."""

    public: PublicKey
    name: Name
    protocol: int
    version: str = Field(max_length=64, description="of edge-agent")


class Joined(_Message):
    """It is one."""

    kind: Literal["joined"] = "joined"
    fleet: Name
    name: Name = Field(description="what the node is called here")
    control_port: Port


class NotJoined(_Message):
    """It is not."""

    kind: Literal["not-joined"] = "not-joined"
    what: str
    hint: str | None = None


_ANSWER: TypeAdapter[Joined | NotJoined] = TypeAdapter(Annotated[Joined | NotJoined, Field(discriminator="kind")])


class Door:
    """The head's door, on a thread and a socket of its own. Whoever has no joining key is not heard.

    Args:
        fleet: Whose door it is.
        members: To whom nodes are added.
        control_port: Where they go next.
        host: Address to listen on; `*` is every one.
        port: Taken if it is free, otherwise any; None: the one after the control port.

    Raises:
        ConfigurationError: no port is free, or the address is not this PC's.
    """

    def __init__(
        self, fleet: FleetIdentity, members: Members, control_port: int, *, host: str = "*", port: int | None = None
    ) -> None:
        self._fleet, self._members, self._control_port = fleet, members, control_port
        self._allowance = Allowance(_REQUESTS, _REQUESTS_PER_SECOND, time.monotonic())
        self._logged: deque[str] = deque(maxlen=_LOGGED_KEYS)
        self._log_lines = Allowance(_LOG_LINES, _LOG_LINES_PER_SECOND, time.monotonic())
        self._end: Mailbox[None] = Mailbox()
        self._context = sockets.Context()
        try:
            domain = Doorman(self._context).guard(self._check, final=True)
            self._socket = self._listen(domain, host, (control_port + 1) % 2**16 if port is None else port)
        except BaseException:
            self._end.close()
            self._context.term()
            raise
        self.port = port_of(self._socket)
        self._thread = threading.Thread(target=self._run, name="door", daemon=True)
        self._thread.start()

    def renew(self, fleet: FleetIdentity) -> None:
        """Take the joining key of the fleet as it is now; with older ones nobody comes in or is heard any more."""
        self._fleet = fleet

    def close(self) -> None:
        """Close the door."""
        self._end.put(None)
        self._thread.join()

    def _listen(self, domain: bytes, host: str, port: int) -> sockets.Socket:
        def listen(port: int) -> sockets.Socket:
            return sockets.listen(
                self._context, zmq.ROUTER, self._fleet.keys, domain=domain, max_bytes=MAX_BYTES, host=host, port=port
            )

        try:
            return listen(port)
        except ConfigurationError:
            return listen(0)

    def _check(self, key: str, address: str) -> bool:
        """On the doorman's thread."""
        if key == self._fleet.joining.public:
            return True
        if key not in self._logged and self._log_lines.take(time.monotonic()):
            self._logged.append(key)
            _log.warning("a node at %s tried to join with a token that is not valid", address)
        return False

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._end, zmq.POLLIN)
        try:
            while self._end.fileno() not in dict(poller.poll()):
                route, *parts = self._socket.recv_multipart(copy=False)
                answer = self._answer(parts)
                if answer is not None:
                    self._socket.send_multipart([route, answer.model_dump_json().encode()], zmq.NOBLOCK)
        finally:
            self._socket.close()
            self._end.close()
            self._context.term()

    def _answer(self, parts: Sequence[zmq.Frame]) -> Joined | NotJoined | None:
        if parts[0].get("User-Id") != self._fleet.joining.public:
            return None  # came in before the token was renewed
        if not self._allowance.take(time.monotonic()):
            return NotJoined(what="too many nodes join at the same time", hint="Try again in a minute.")
        try:
            request = JoinRequest.model_validate_json(parts[0].bytes)
        except ValidationError:
            return NotJoined(what="the head does not understand the request", hint=versions.SAME_VERSION)
        if request.protocol != PROTOCOL:
            return NotJoined(what=versions.difference(request.version, request.protocol), hint=versions.SAME_VERSION)
        if self._members.is_forgotten(request.public):
            code = code_of(self._members.fleet, request.public)
            return NotJoined(
                what="this PC was shut out of the fleet",
                hint=f"Join without a token, and on the head's PC: edge-agent approve {code}",
            )
        name = self._members.name_of(request.public)
        if name is None:
            try:
                name = self._members.add(request.public, request.name).name
            except EdgeAgentError as error:
                return NotJoined(what=f"the head cannot let this PC in: {error.what}", hint=error.hint)
        return Joined(fleet=self._fleet.name, name=name, control_port=self._control_port)


def join_with_token(
    addresses: Sequence[str], port: int, token: Token, node: NodeIdentity, *, seconds: float = JOIN_SECONDS
) -> Joined:
    """Become a member of the token's fleet.

    Args:
        addresses: IP addresses or names of the head; all are tried at once.
        port: Of its door.
        token: Of the fleet.
        node: Who wants to join.
        seconds: To wait for an answer.

    Raises:
        ConfigurationError: the head is not reached, the token is not (or no longer) valid, the versions do not fit,
            or the head says no.
    """
    request = JoinRequest(public=node.keys.public, name=node.name, protocol=PROTOCOL, version=versions.own().edge_agent)
    context = sockets.Context()
    try:
        socket = sockets.client(context, zmq.DEALER, token.joining, token.fleet, max_bytes=MAX_BYTES)
        socket.immediate = True  # the request goes to the first address where the head has proven who it is
        call = _Call(socket, addresses, port)
        answer = call.ask(request, seconds)
    finally:
        context.destroy(linger=0)
    if isinstance(answer, NotJoined):
        raise ConfigurationError(answer.what, where=call.where, hint=answer.hint)
    return answer


class _Call:
    """One request and its answer, on a socket that is connected to several addresses."""

    def __init__(self, socket: sockets.Socket, addresses: Sequence[str], port: int) -> None:
        self._socket, self._addresses = socket, addresses
        self._events = socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        )
        self._port = port
        self._refusals = 0
        self._is_reached = False
        for address in addresses:
            try:
                socket.connect(endpoint(address, port))
            except zmq.ZMQError as error:
                raise ConfigurationError(
                    f"this is no address ({zmq.strerror(error.errno or 0)})", where=f"{address}:{port}"
                ) from None

    @property
    def where(self) -> str:
        """Who is called."""
        return f"head at {', '.join(self._addresses)}, port {self._port}"

    def ask(self, request: JoinRequest, seconds: float) -> Joined | NotJoined:
        """Send the request as soon as there is a connection, and wait for the answer."""
        end = time.monotonic() + seconds
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLOUT)
        poller.register(self._events, zmq.POLLIN)
        while (left := end - time.monotonic()) > 0:
            ready = dict(poller.poll(math.ceil(left * 1000)))
            if ready.get(self._socket) == zmq.POLLOUT:
                self._socket.send(request.model_dump_json().encode())
                poller.register(self._socket, zmq.POLLIN)
            elif self._socket in ready:
                return self._read(self._socket.recv())
            if self._events in ready:
                self._note(recv_monitor_message(self._events)["event"])
        raise self._failure(seconds)

    def _read(self, data: bytes) -> Joined | NotJoined:
        try:
            return _ANSWER.validate_json(data)
        except ValidationError:
            return NotJoined(what="this PC does not understand the head's answer", hint=versions.SAME_VERSION)

    def _note(self, event: int) -> None:
        self._is_reached = True
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._refusals += 1  # after which that address is not tried again
            if self._refusals == len(self._addresses):
                raise self._refused()

    def _failure(self, seconds: float) -> ConfigurationError:
        if self._refusals:
            return self._refused()
        what, hint = "it does not answer", _REACH
        if self._is_reached:
            what, hint = "what answers there is not the head of the token's fleet", _OTHER_HEAD
        return ConfigurationError(f"{what} (waited {seconds:g} s)", where=self.where, hint=hint)

    def _refused(self) -> ConfigurationError:
        return ConfigurationError(
            "the token is not valid any more", where=self.where, hint="Take the one that the head shows now."
        )
