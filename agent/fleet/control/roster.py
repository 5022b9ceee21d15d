"""Who is in: what the head's side of the control channel decides, without its sockets, threads and clock.

Messages and the time go in; what to tell whom, and what has happened, comes out. Both are carried out in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from agent.fleet.control.messages import (
    HEARTBEAT_SECONDS,
    LOST_SECONDS,
    FromNode,
    Goodbye,
    Heartbeat,
    Hello,
    Refused,
    ToNode,
    Welcome,
)
from agent.fleet.trust.allowance import Allowance

_MOST_BEFORE_HELLO = 64 * 2**10
"""Bytes of the largest message that is read of a node that is not in."""

_RATE = 1000.0
"""Messages a second that are read of a node, in the long run; and at once after a quiet second."""

_STRIKES = 3
"""Messages in a row that cannot be read until their node is dropped."""

_CHECK_HEARTBEATS = 2
"""A node that is alive is heard within so many heartbeats."""

_LONGEST_NAME = 63


@dataclass(frozen=True, slots=True)
class Connection:
    """A node's connection: the key it has proven, and the socket's name for the way to it."""

    key: str
    route: bytes


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node is in."""

    key: str
    name: str
    hello: Hello
    address: str
    """IP address it came from."""


@dataclass(frozen=True, slots=True)
class NodeSaid:
    """A node that is in said something: any message but Hello and Goodbye, and Heartbeats only with a condition."""

    key: str
    message: FromNode


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A node is no longer in."""

    key: str
    why: str


NodeEvent = NodeJoined | NodeSaid | NodeLeft


@dataclass(frozen=True, slots=True)
class Tell:
    """A message is to be sent."""

    to: Connection
    message: ToNode


@dataclass(frozen=True, slots=True)
class Dropped:
    """A message was not heeded; for the log."""

    connection: Connection
    why: str


Action = NodeEvent | Tell | Dropped


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A Hello."""

    connection: Connection
    address: str
    hello: Hello
    time: float


@dataclass(slots=True)
class _Node:
    connection: Connection
    name: str
    address: str
    instance: str
    heard: float
    allowance: Allowance
    """Of messages that are read."""
    strikes: int = 0
    rival: _Arrival | None = None
    """Has the same key, and waits until it is clear whether this node is still alive."""


class Roster:
    """The nodes that are in: one of each key, each with a name of its own.

    Args:
        fleet: What nodes are told they are in.
        heartbeat: Seconds between two heartbeats.
        lost: Seconds of silence after which a node counts as gone.
    """

    def __init__(self, fleet: str, heartbeat: float = HEARTBEAT_SECONDS, lost: float = LOST_SECONDS) -> None:
        self._fleet, self._heartbeat, self._lost = fleet, heartbeat, lost
        self._nodes: dict[str, _Node] = {}
        self._next_beat = 0.0

    def connection(self, key: str) -> Connection | None:
        """The way to a node, if it is in."""
        node = self._nodes.get(key)
        return node.connection if node else None

    def objection(self, now: float, connection: Connection, size: int) -> str | None:
        """Why a message of `size` bytes that has just come is not even to be read."""
        node = self._node(connection)
        if node is None:
            return "it is too large for a first message" if size > _MOST_BEFORE_HELLO else None
        return None if node.allowance.take(now) else f"there are more than {_RATE:g} a second"

    def said(self, now: float, connection: Connection, address: str, message: FromNode) -> list[Action]:
        """A message has come."""
        node = self._node(connection)
        if node is None:
            return self._said_outside(now, connection, address, message)
        if isinstance(message, Hello):
            return self.malformed(now, connection, "it has already said hello")
        if isinstance(message, Goodbye):
            return self._leave(now, node, message.why)
        node.strikes = 0
        actions = self._prove_alive(now, node)
        if not isinstance(message, Heartbeat) or message.condition is not None:
            actions.append(NodeSaid(connection.key, message))
        return actions

    def malformed(self, now: float, connection: Connection, why: str) -> list[Action]:
        """A message has come that cannot be read."""
        actions: list[Action] = [Dropped(connection, why)]
        node = self._node(connection)
        if node is None:
            return actions
        actions += self._prove_alive(now, node)
        node.strikes += 1
        if node.strikes == _STRIKES:
            what = f"{_STRIKES} messages in a row could not be read, the last: {why}"
            actions += self.drop(
                connection.key, Refused(what=what, hint="Install the same version of edge-agent on both PCs.")
            )
        return actions

    def unreachable(self, now: float, connection: Connection, why: str) -> list[Action]:
        """Something could not be sent to a connection."""
        if node := self._node(connection):
            return self._leave(now, node, why)
        self._forget_rival(connection)
        return []

    def drop(self, key: str, last: Refused | Goodbye) -> list[Action]:
        """Shut a node out, with the last words to it. Does nothing if it is not in."""
        node = self._nodes.pop(key, None)
        if node is None:
            return []
        why = last.what if isinstance(last, Refused) else last.why
        actions: list[Action] = [Tell(node.connection, last), NodeLeft(key, why)]
        if node.rival is not None:
            actions.append(Tell(node.rival.connection, last))
        return actions

    def close(self, why: str) -> list[Action]:
        """Say goodbye to all."""
        return [action for key in list(self._nodes) for action in self.drop(key, Goodbye(why=why))]

    def tick(self, now: float) -> list[Action]:
        """Time has passed; to be called several times a heartbeat, after what has come was taken in."""
        actions: list[Action] = []
        for node in list(self._nodes.values()):
            if node.rival is not None and now - node.rival.time >= _CHECK_HEARTBEATS * self._heartbeat:
                why = "it did not answer when another process with its identity came"
            elif now - node.heard >= self._lost:
                why = f"nothing was heard of it for {self._lost:g} seconds"
            else:
                continue
            actions.append(Tell(node.connection, Goodbye(why=why)))  # should it wake up, it comes back at once
            actions += self._leave(now, node, why)
        if now >= self._next_beat:
            self._next_beat = now + self._heartbeat
            actions += [Tell(node.connection, Heartbeat()) for node in self._nodes.values()]
        return actions

    def _node(self, connection: Connection) -> _Node | None:
        """The node of a connection, if it is the one that is in."""
        node = self._nodes.get(connection.key)
        return node if node and node.connection == connection else None

    def _said_outside(self, now: float, connection: Connection, address: str, message: FromNode) -> list[Action]:
        if isinstance(message, Hello):
            return self._arrive(_Arrival(connection, address, message, now))
        if isinstance(message, Goodbye):  # also of a node that left before this was read
            self._forget_rival(connection)
            return []
        return [Dropped(connection, "it has not said hello")]

    def _arrive(self, arrival: _Arrival) -> list[Action]:
        self._forget_rival(arrival.connection)  # it now says something else
        node = self._nodes.get(arrival.connection.key)
        if node is None:
            return self._admit(arrival.time, arrival)
        if node.instance == arrival.hello.instance:
            alive = self._prove_alive(arrival.time, node)
            return [*alive, *self._remove(node, "it connected again"), *self._admit(arrival.time, arrival)]
        if node.rival is None:
            node.rival = arrival
            return [Tell(node.connection, Heartbeat())]  # tells at once if its connection is broken
        if node.rival.hello.instance == arrival.hello.instance:  # it gave its first connection up
            node.rival = _Arrival(arrival.connection, arrival.address, arrival.hello, node.rival.time)
            return []
        what = f"several processes with the identity of {node.name} want to come in at once"
        return _refuse(arrival, Refused(what=what, final=False))

    def _prove_alive(self, now: float, node: _Node) -> list[Action]:
        node.heard = now
        rival, node.rival = node.rival, None
        if rival is None:
            return []
        return _refuse(
            rival,
            Refused(
                what=f"a PC with the same identity is in the fleet: {node.name} at {node.address}",
                hint="If edge-agent already runs on this PC, end it there first. Otherwise a settings folder was "
                "copied: remove node.json from it on one of the two PCs.",
            ),
        )

    def _forget_rival(self, connection: Connection) -> None:
        node = self._nodes.get(connection.key)
        if node and node.rival and node.rival.connection == connection:
            node.rival = None

    def _leave(self, now: float, node: _Node, why: str) -> list[Action]:
        """Take a node out; who waited for that comes in."""
        actions: list[Action] = [*self._remove(node, why)]
        return actions if node.rival is None else actions + self._admit(now, node.rival)

    def _remove(self, node: _Node, why: str) -> list[NodeLeft]:
        del self._nodes[node.connection.key]
        return [NodeLeft(node.connection.key, why)]

    def _admit(self, now: float, arrival: _Arrival) -> list[Action]:
        connection, hello = arrival.connection, arrival.hello
        name = self._free_name(hello.name)
        allowance = Allowance(_RATE, _RATE, now)
        self._nodes[connection.key] = _Node(connection, name, arrival.address, hello.instance, now, allowance)
        return [
            NodeJoined(connection.key, name, hello, arrival.address),
            Tell(connection, Welcome(fleet=self._fleet, name=name)),
        ]

    def _free_name(self, wanted: str) -> str:
        """The name, fit for a terminal, with a number if another node has it."""
        printable = "".join(character if character.isprintable() else " " for character in wanted)
        name = " ".join(printable.split()) or "node"
        taken = {node.name.casefold() for node in self._nodes.values()}
        numbered = (f"{name[: _LONGEST_NAME - len(end)]}{end}" for end in (f"-{number}" for number in count(2)))
        return name if name.casefold() not in taken else next(n for n in numbered if n.casefold() not in taken)


def _refuse(arrival: _Arrival, refused: Refused) -> list[Action]:
    return [Tell(arrival.connection, refused), Dropped(arrival.connection, f"refused: {refused.what}")]
