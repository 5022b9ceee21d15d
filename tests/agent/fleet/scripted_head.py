"""A head with a real control channel whose fleet a test scripts, and nodes on loopback for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from agent.fleet.bulk.library import Library
from agent.fleet.control import versions
from agent.fleet.control.control_server import ControlServer, NodeEvent, NodeJoined, NodeLeft, NodeSaid
from agent.fleet.control.messages import (
    HEARTBEAT_SECONDS,
    Condition,
    Device,
    Directory,
    FromNode,
    Hardware,
    Hello,
    ModelRef,
    Neighbour,
)
from agent.fleet.head.node_record import NodeRecord
from agent.fleet.head.orders import Orders
from agent.fleet.node.node import Node, NodeSettings, NodeStatus
from agent.fleet.trust.identity import NodeIdentity
from pipeline.chain import Chain
from pipeline.control import Start
from pipeline.link import KeyPair
from pipeline.stages import Heard, Stage
from shards import manifest as manifests
from shards.runtime import StageConfig

HOST = "127.0.0.1"
PATIENCE = 180.0
HARDWARE = Hardware(
    processor="any", cores=1, memory=2**33, devices=(Device(name="CPU", full_name="any"),), is_laptop=False
)


def record(key: str, name: str = "desk") -> NodeRecord:
    """A node that is in."""
    condition = Condition(memory_free=2**32, memory_allowed=2**31, disk_free=2**35)
    said = Hello(
        name=name,
        instance="1",
        versions=versions.own(),
        hardware=HARDWARE,
        condition=condition,
        addresses=(HOST,),
        bulk_port=7,
    )
    return NodeRecord(key, name, said, HOST, condition)


class ScriptedHead:
    """Lets members in, tells everybody of everybody, and gives the orders a test wants. A context manager."""

    def __init__(
        self,
        is_member: Callable[[str], bool] = lambda key: True,
        port: int = 0,
        keys: KeyPair | None = None,
        heartbeat: float = HEARTBEAT_SECONDS,
    ) -> None:
        self.keys = keys or KeyPair.new()
        self.nodes: dict[str, NodeJoined] = {}
        self.said: SimpleQueue[FromNode] = SimpleQueue()
        self._names: dict[str, str] = {}
        """Of those that have left, too."""
        self._more = threading.Condition()
        self.server = ControlServer(
            self.keys,
            lambda key, _: is_member(key),
            is_member,
            "home",
            self._hear,
            host=HOST,
            port=port,
            heartbeat=heartbeat,
        )
        self.port = self.server.port
        self.orders = Orders(self.server.tell, self._names.__getitem__, self._names.__contains__)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    def wait(self, count: int) -> None:
        """Until so many nodes are in."""
        with self._more:
            assert self._more.wait_for(lambda: len(self.nodes) == count, PATIENCE), self.nodes

    def open_chain(self, package: Path, stages: Sequence[tuple[Node, int, int]], **options: Any) -> Chain:
        """A chain of (node, first layer, end layer); the nodes of `holders` have the package."""
        model = ref(package, options.pop("holders", ()))
        changes = options.pop("changes", {})
        configs = [
            StageConfig(
                package=Path("of the head"), first_layer=first, end_layer=end, mode="exact", kv_tokens=256, **changes
            )
            for _, first, end in stages
        ]

        def start(index: int, name: str, task: Start, heard: Heard) -> Stage:
            return self.orders.open_stage(stages[index][0].key, name, model, task, heard)

        common = {"max_rows": 64, "max_sequences": 8, "interface": HOST, "head_host": "head"}
        locate = lambda peer: peer.model_copy(update={"host": HOST})  # noqa: E731
        return Chain.start(configs, start_stage=start, locate=locate, **{**common, **options})

    def _hear(self, event: NodeEvent) -> None:
        match event:
            case NodeJoined(key=key, name=name):
                with self._more:
                    self._names[key] = name
                    self.nodes[key] = event
                    self._more.notify_all()
                self._tell_directory()
            case NodeLeft(key=key, why=why):
                with self._more:
                    del self.nodes[key]
                    self._more.notify_all()
                self.orders.lose(key, why)
                self._tell_directory()
            case NodeSaid(key=key, message=message):
                self.said.put(message)
                self.orders.hear(key, message)

    def _tell_directory(self) -> None:
        nodes = tuple(
            Neighbour(id=key, name=node.name, addresses=(HOST,), bulk_port=node.hello.bulk_port)
            for key, node in self.nodes.items()
        )
        for key in self.nodes:
            self.server.tell(key, Directory(nodes=nodes))


class Statuses(list[NodeStatus]):
    """What a node has shown."""

    def __init__(self) -> None:
        super().__init__()
        self._more = threading.Condition()

    def add(self, status: NodeStatus) -> None:
        with self._more:
            self.append(status)
            self._more.notify_all()

    def wait(self, wanted: Callable[[NodeStatus], bool]) -> NodeStatus:
        """Until the latest is as wanted."""
        with self._more:
            assert self._more.wait_for(lambda: bool(self) and wanted(self[-1]), PATIENCE), self[-3:]
            return self[-1]


def start_node(
    head: ScriptedHead,
    folder: Path,
    name: str = "desk",
    *,
    keys: KeyPair | None = None,
    lends: Path | None = None,
    observe: Callable[[NodeStatus], None] = lambda status: None,
    **settings: Any,
) -> Node:
    """A node on loopback, with its files in a folder of its own."""
    library = Library(folder / name)
    if lends is not None:
        library.lend(lends)
    found: Future[Hardware] = Future()
    found.set_result(HARDWARE)
    return Node(
        NodeSettings(threads=1, **settings),
        NodeIdentity(name=name, keys=keys or KeyPair.new()),
        head.keys.public,
        (HOST,),
        head.port,
        library,
        interface=HOST,
        observe=observe,
        found=found,
        cache=folder / f"{name}-tuning",
    )


def ref(package: Path, holders: Sequence[Node]) -> ModelRef:
    """A package as messages name it."""
    manifest = manifests.read(package)
    return ModelRef(
        package_id=manifest.package_id, name=manifest.facts.name, holders=tuple(node.key for node in holders)
    )
