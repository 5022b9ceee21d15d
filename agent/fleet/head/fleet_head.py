"""The head's side of a fleet: who is in, who waits, what each node offers, and the orders they carry out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

from agent import paths
from agent.fleet.bulk.library import Library
from agent.fleet.control import versions
from agent.fleet.control.control_server import ControlServer, NodeEvent, NodeJoined, NodeLeft, NodeSaid
from agent.fleet.control.messages import Directory, Heartbeat, ModelRef, ToNode, Traffic
from agent.fleet.discovery.discovery import Announcement, Discovery
from agent.fleet.discovery.reach import reach
from agent.fleet.head.event_log import EventLog
from agent.fleet.head.fleet_options import FleetOptions
from agent.fleet.head.node_record import NodeRecord
from agent.fleet.head.one_head import HeadNote, OneHead
from agent.fleet.head.orders import Orders
from agent.fleet.node.hardware import choose_device
from agent.fleet.node.node import Node, NodeStatus
from agent.fleet.trust.door import Door
from agent.fleet.trust.identity import FleetIdentity, NodeIdentity
from agent.fleet.trust.members import Members, code_of
from agent.fleet.trust.pending import Pending
from pipeline.link import Peer
from pipeline.stages import LOOPBACK
from shards.errors import ConfigurationError, RequestError, StageError
from shards.manifest import Manifest


class FleetHead:
    """Lets nodes in, keeps track of them, and has a node of its own on this PC. A context manager.

    Args:
        package: The model package that is served; nodes fetch their parts of it.
        options: Where it listens, and what this PC gives.
        folder: Where identity and members are kept; None: the user's settings.
        url: Where the HTTP API answers on this PC, for programs of this user.
        api_port: Port of the HTTP API; None: other PCs cannot reach it.

    Raises:
        ConfigurationError: a key file cannot be used, or no port is free.
    """

    def __init__(
        self,
        package: Path,
        options: FleetOptions,
        *,
        folder: Path | None = None,
        url: str = "",
        api_port: int | None = None,
    ) -> None:
        self._folder = folder = folder or paths.config_folder()
        self._api_port = api_port
        self.identity = FleetIdentity.load_or_create(folder)
        one = OneHead(
            folder,
            HeadNote.of_this_process(
                name=self.identity.name,
                fleet=self.identity.keys.public,
                version=versions.own().edge_agent,
                url=url,
            ),
        )
        local = NodeIdentity.load_or_create(folder)
        self.local_key = local.keys.public
        self.events = EventLog()
        self._members = Members(folder, self.identity.keys.public)
        self._pending = Pending(self._members)
        self._members.add(self.local_key, local.name)
        self._nodes: dict[str, NodeRecord] = {}
        self._names: dict[str, str] = {}
        """What nodes are called, also those that have left."""
        self.is_busy = False
        """Whether tokens flow."""
        self._holders: dict[str, list[str]] = {}
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._is_built = threading.Event()
        """Nodes may come while this is made."""
        with ExitStack() as stack:
            stack.callback(one.close)
            self.orders = Orders(self._tell, self.name_of, self._nodes.__contains__)
            self._control = self._listen(options)
            stack.callback(self._control.close)
            self._is_built.set()
            self._door = Door(self.identity, self._members, self._control.port, host=options.interface)
            stack.callback(self._door.close)
            self._library = Library(paths.cache_folder() / "fleet")
            self.lend(package)
            self._node = Node(
                options.node,
                local,
                self.identity.keys.public,
                (LOOPBACK,),
                self._control.port,
                self._library,
                interface=options.interface,
                observe=self._see_own_node,
            )
            stack.callback(self._node.close)
            if options.announced:
                stack.callback(Discovery(self._announcement(local), self._seen).close)
            self._end = stack.pop_all()

    def _listen(self, options: FleetOptions) -> ControlServer:
        def listen(port: int) -> ControlServer:
            return ControlServer(
                self.identity.keys,
                may_enter=self._pending.check,
                is_member=self._members.is_member,
                fleet_name=self.identity.name,
                events=self._hear,
                host=options.interface,
                port=port,
            )

        try:
            return listen(options.port)
        except ConfigurationError:
            if options.port == 0:
                raise
            return listen(0)  # nodes are told by mDNS where it is

    def close(self) -> None:
        """Say goodbye to everybody."""
        self._end.close()

    def __enter__(self) -> FleetHead:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Who is in

    @property
    def port(self) -> int:
        """The control port."""
        return self._control.port

    def nodes(self) -> tuple[NodeRecord, ...]:
        """Those that are in now, in the order they came."""
        with self._lock:
            return tuple(self._nodes.values())

    def name_of(self, key: str) -> str:
        """What a node is, or was, called; a part of its key where that is not known."""
        return self._names.get(key) or self._members.name_of(key) or key[:8]

    def device_of(self, record: NodeRecord) -> str:
        """The device a node's stages run on.

        Raises:
            ConfigurationError: it has not the one its user wants to give.
        """
        return choose_device(record.hello.hardware, record.hello.device)

    def set_busy(self, busy: bool) -> None:
        """Tell the nodes whether tokens flow, which weights that are fetched make way for."""
        self.is_busy = busy
        for record in self.nodes():
            self._tell(record.key, Traffic(busy=busy))

    def locate(self, peer: Peer) -> Peer:
        """Put an address that connects in place of a node's key.

        Raises:
            StageError: the node is gone, or cannot be reached.
        """
        if peer.host == self.local_key:
            return peer.model_copy(update={"host": LOOPBACK})
        record = self._nodes.get(peer.host)
        if record is None:
            raise StageError("the node is gone", where=self.name_of(peer.host))
        return peer.model_copy(update={"host": reach(record.neighbour.addresses, peer.port)})

    def lend(self, package: Path) -> None:
        """Have nodes fetch their parts of a package from this PC. Raises PackageError if it is none."""
        self._holders[self._library.lend(package).manifest.package_id] = [self.local_key]

    def model_ref(self, manifest: Manifest) -> ModelRef:
        """A package as nodes are told of it: with those that have the whole of it."""
        holders = tuple(self._holders.get(manifest.package_id, ()))
        return ModelRef(package_id=manifest.package_id, name=manifest.facts.name, holders=holders)

    def leave_out(self, record: NodeRecord, why: str, *, final: bool = False) -> None:
        """Do not plan with a node for a while, longer with every time; or, if `final`, not until it joins again."""
        if self._nodes.get(record.key) is not record:
            return  # what fails because a node has left says nothing about it
        why = why.removeprefix(f"{record.name}: ")
        setback = record.fail(why, final=final, now=monotonic())
        until = "until it joins again" if final else f"for {setback.pause:.0f} s"
        self.events.add(f"{record.name} is not planned with {until}: {why}")
        self._tell_listeners()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call when a node has come or gone, or is left out, on any thread; it must not block."""
        self._listeners.append(listener)

    def approve(self, code: str) -> str:
        """Let a pending node in; returns its name. Raises RequestError."""
        member = self._pending.approve(code)
        self.events.add(f"{member.name} was let in")
        return member.name

    def refuse(self, code: str) -> str:
        """Do not list a pending node any more; returns its name, or its code. Raises RequestError."""
        node = self._pending.refuse(code)
        name = node.name or node.code
        self.events.add(f"{name} at {node.address} was not let in")
        return name

    def renew_token(self) -> None:
        """Make a new token; with the old one nobody comes in any more. Raises ConfigurationError."""
        self.identity = self.identity.renew_token(self._folder)
        self._door.renew(self.identity)
        self.events.add("the token was renewed")

    def forget(self, node: str) -> str:
        """Shut a node out, at once; returns its name. Raises RequestError."""
        # by the name that it is shown with, which need not be the one it became a member with
        key = self._members.find(next((record.key for record in self.nodes() if record.name == node), node)).key
        if key == self.local_key:
            hint = "Ctrl-C ends edge-agent serve there."
            raise RequestError("this is the head's own PC, which cannot be shut out", where="node", hint=hint)
        self._members.forget(key)
        code = code_of(self.identity.keys.public, key)
        hint = f"To come back: edge-agent join, and on the head's PC: edge-agent approve {code}"
        self._control.drop(key, "it was forgotten by the head", hint)
        name = self.name_of(key)
        self.events.add(f"{name} was shut out")
        return name

    def find(self, node: str) -> NodeRecord:
        """The node with this name or key, of those that are in. Raises RequestError."""
        records = self.nodes()
        for record in records:
            if node in (record.key, record.name):
                return record
        names = ", ".join(record.name for record in records)
        hint = f"There are: {names}." if names else None
        raise RequestError(f"no node that is here is called {node!r}", where="node", hint=hint)

    def describe(self) -> dict[str, Any]:
        """Everything, as JSON data."""
        return {
            "fleet": {"name": self.identity.name, "key": self.identity.keys.public, "port": self.port},
            "nodes": [self.describe_node(record) for record in self.nodes()],
            "pending": self._pending.describe(),
            "members": self._members.describe(),
            "events": self.events.describe(),
        }

    def describe_node(self, record: NodeRecord) -> dict[str, Any]:
        """A node, as JSON data."""
        return record.describe() | {"is_head": record.key == self.local_key}

    # On the control server's thread

    def _hear(self, event: NodeEvent) -> None:
        self._is_built.wait()
        match event:
            case NodeJoined(key=key, name=name, hello=hello, address=address):
                with self._lock:  # nobody may give orders before all know of the node
                    self._drop_links(key)  # it may be elsewhere now
                    self._nodes[key] = NodeRecord(key, name, hello, address, hello.condition)
                    self._names[key] = name
                    self._tell_directory()
                    self._tell(key, Traffic(busy=self.is_busy))
                self.events.add(f"{name} has joined from {address}")
                self._tell_listeners()
            case NodeLeft(key=key, why=why):
                with self._lock:
                    self._nodes.pop(key, None)
                    self._drop_links(key)
                    self._tell_directory()
                self.events.add(f"{self.name_of(key)} has left: {why}")
                self.orders.lose(key, why)
                self._tell_listeners()
            case NodeSaid(key=key, message=Heartbeat(condition=condition)):
                if condition is not None and (record := self._nodes.get(key)):
                    record.condition = condition
            case NodeSaid(key=key, message=message):
                self.orders.hear(key, message)

    def _tell(self, node: str, message: ToNode) -> None:
        self._control.tell(node, message)

    def _tell_directory(self) -> None:
        directory = Directory(nodes=tuple(record.neighbour for record in self._nodes.values()))
        for node in directory.nodes:
            self._tell(node.id, directory)

    def _drop_links(self, to: str) -> None:
        for record in self._nodes.values():
            record.links = {peer: link for peer, link in record.links.items() if peer != to}
            record.unreachable = record.unreachable - {to}

    def _tell_listeners(self) -> None:
        for listener in self._listeners:
            listener()

    # On other threads

    def _see_own_node(self, status: NodeStatus) -> None:
        if status.state == "out":
            self.events.add(f"this PC's own node is out: {status.why}")

    def _seen(self, others: tuple[Announcement, ...]) -> None:
        self._pending.name({other.key: other.name for other in others})

    def _announcement(self, local: NodeIdentity) -> Announcement:
        return Announcement(
            key=local.keys.public,
            fleet=self.identity.keys.public,
            role="head",
            name=self.identity.name,
            control=self._control.port,
            door=self._door.port,
            bulk=self._node.bulk_port,
            api=self._api_port,
        )
