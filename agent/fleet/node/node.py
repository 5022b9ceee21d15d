"""A PC's part in a fleet: it stays in touch with the head, measures, keeps weights, and runs stages."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Self
from uuid import uuid4

from agent import paths
from agent.fleet.bulk.bulk_server import BulkServer
from agent.fleet.bulk.library import Library
from agent.fleet.control import versions
from agent.fleet.control.control_client import ClientEvent, ControlClient, Entered, Lost, Out, Told, Waiting
from agent.fleet.control.messages import (
    CloseStage,
    Condition,
    Directory,
    Examine,
    FromNode,
    Hardware,
    Hello,
    MeasureLinks,
    MeasureModel,
    Neighbour,
    OpenStage,
    TaskFailed,
    ToNode,
    ToStageProcess,
    Traffic,
)
from agent.fleet.discovery.interfaces import own_addresses
from agent.fleet.discovery.reach import reach
from agent.fleet.node import node_stage
from agent.fleet.node.examiner import Examiner
from agent.fleet.node.hardware import condition, hardware
from agent.fleet.node.node_packages import NodePackages
from agent.fleet.node.node_settings import NodeSettings
from agent.fleet.node.node_stage import NodeStage, Workplace
from agent.fleet.node.node_status import Activity, NodeStatus
from agent.fleet.node.node_tasks import NodeTasks
from agent.fleet.node.sensors import LoadMeter
from agent.fleet.trust.identity import NodeIdentity
from agent.fleet.trust.members import code_of
from pipeline.link import Peer, endpoint
from pipeline.planning.plan import HEAD
from pipeline.stages import LOOPBACK
from shards.errors import EdgeAgentError, StageError

__all__ = ["Node", "NodeSettings", "NodeStatus", "look_up_hardware"]

_LOOK_SECONDS = 1.0
"""How often a node without a head looks where it is."""

_END_SECONDS = 3.0
"""For what is at work when the node is closed."""

_log = logging.getLogger(__name__)


def look_up_hardware() -> Future[Hardware]:
    """Begin to find out what this PC has, which takes a second or two."""
    future: Future[Hardware] = Future()

    def look_up() -> None:
        try:
            future.set_result(hardware())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=look_up, name="hardware", daemon=True).start()
    return future


class Node:
    """This PC in a fleet, until it is closed; a context manager.

    Args:
        settings: What it may use.
        identity: Who it is.
        fleet: Public key of the fleet.
        addresses: IP addresses of the head; whichever answers is used.
        port: Its control port.
        library: Where packages are kept.
        interface: Address to serve weights at; `*` is every one.
        observe: Called with the status whenever it has changed, on any thread, one call at a time; must be quick.
        found: What the PC has, from `look_up_hardware`.
        cache: Folder for what is measured; None: the user's own.

    Raises:
        ConfigurationError: there is no port to serve weights at, or the engine that is wanted cannot be used here.
    """

    def __init__(
        self,
        settings: NodeSettings,
        identity: NodeIdentity,
        fleet: str,
        addresses: Sequence[str],
        port: int,
        library: Library,
        *,
        interface: str = "*",
        observe: Callable[[NodeStatus], None] = lambda status: None,
        found: Future[Hardware] | None = None,
        cache: Path | None = None,
    ) -> None:
        self._settings, self._keys, self._fleet, self._library = settings, identity.keys, fleet, library
        self._name, self._observe = settings.name or identity.name, observe
        self._engines = settings.engines()
        self._head = (tuple(addresses), port)
        self._hardware = found or look_up_hardware()
        self._instance = uuid4().hex
        self._neighbours: dict[str, Neighbour] = {}
        """By key; replaced as a whole, so it may be read on any thread."""
        self._client: ControlClient | None = None
        self._at: tuple[str, int] | None = None
        """Address and port where the head answered last."""
        self._doubted: str | None = None
        """The address at which something answered that did not take this node in."""
        self._is_settled = False
        """Whether the head need not be looked for."""
        self._stages: dict[str, NodeStage] = {}
        self._lock = threading.RLock()
        """Held to change the two, and the status."""
        self._closing = threading.Event()
        self.status = NodeStatus(name=self._name)
        self._bulk = BulkServer(self._keys, self._may_fetch, library, interface)
        packages = NodePackages(library, self._keys, self._neighbour)
        cache = cache or paths.tuning_folder()
        self._place = Workplace(settings, packages, self._hardware.result, self._locate, cache)
        self._tasks = NodeTasks(self._place, self._keys, self._neighbour, self._show_measuring, self._set_rate)
        self._examiner = Examiner(self._hardware.result)
        self._load = LoadMeter()
        self._thread = threading.Thread(target=self._follow, name="node", daemon=True)
        self._thread.start()

    @property
    def key(self) -> str:
        """Its public key."""
        return self._keys.public

    @property
    def bulk_port(self) -> int:
        """Where other nodes fetch weights."""
        return self._bulk.port

    def move(self, addresses: Sequence[str], port: int) -> None:
        """The head is to be looked for elsewhere, should it be lost."""
        self._head = (tuple(addresses), port)

    def close(self) -> None:
        """Say goodbye to the head, and end everything."""
        with self._lock:
            self._closing.set()
            client, stages = self._client, list(self._stages.values())
        self._tasks.cancel()
        if client is not None:
            client.close()
        node_stage.end(stages, _END_SECONDS)
        self._tasks.wait(_END_SECONDS)
        self._bulk.close()
        wait([self._hardware], _END_SECONDS)  # it has a process
        self._thread.join(_END_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Finding the head, on a thread of its own

    def _follow(self) -> None:
        """Look for the head whenever there is none."""
        while not self._closing.is_set():
            try:
                self._place.hardware()  # before the head waits for it
                if not self._is_settled:
                    self._look()
            except Exception as error:
                _log.exception("a defect of edge-agent, please report it: the head cannot be looked for")
                self._show(state="looking", why=f"{type(error).__name__}: {error}")
            self._closing.wait(_LOOK_SECONDS)

    def _look(self) -> None:
        addresses, port = self._head
        try:
            host = reach(sorted(addresses, key=lambda address: address == self._doubted), port)
        except StageError as error:
            if not self._is_settled:
                self._show(state="looking", why=str(error))
            return
        if (host, port) == self._at:
            return  # the client there tries by itself
        if self._client is not None:
            self._client.close()
            self._leave()
        with self._lock:
            if self._closing.is_set():
                return
            self._at = host, port
            self._show(head=endpoint(host, port).removeprefix("tcp://"))
            self._client = ControlClient(self._keys, self._fleet, host, port, self._hello, self._condition, self._hear)

    # On the control client's thread

    def _hello(self) -> Hello:
        return Hello(
            name=self._name,
            instance=self._instance,
            versions=versions.own(),
            hardware=self._place.hardware(),
            condition=self._condition(),
            device=self._settings.device,
            engines=self._engines,
            addresses=own_addresses()[:64],
            bulk_port=self.bulk_port,
        )

    def _condition(self) -> Condition:
        return condition(self._settings.memory, self._library.folder, self._load.look())

    def _hear(self, event: ClientEvent) -> None:
        is_known = isinstance(event, Waiting) and event.for_approval
        self._is_settled = is_known or isinstance(event, Entered | Told | Out)
        match event:
            case Entered(welcome=welcome):
                self._doubted = None
                self._show(state="joined", fleet=welcome.fleet, name=welcome.name, why=None, code=None)
            case Told(message=message):
                self._obey(message)
            case Waiting(why=why, for_approval=True):
                self._show(state="waiting", why=why, code=code_of(self._fleet, self._keys.public))
            case Waiting(why=why):
                self._doubted = self._at and self._at[0]
                self._show(state="looking", why=why, code=None)
            case Lost(why=why):
                self._leave()
                self._show(state="looking", why=why)
            case Out(refused=refused):
                self._leave()
                self._show(state="out", why=refused.what, hint=refused.hint, code=None)

    def _obey(self, order: ToNode) -> None:
        match order:
            case Directory(nodes=nodes):
                self._neighbours = {node.id: node for node in nodes}
            case Traffic(busy=busy):
                self._bulk.set_busy(busy)
                self._place.packages.pace.busy = busy
            case MeasureModel() | MeasureLinks():
                self._tasks.add(order, self._tell)
            case Examine(task=task):
                self._examiner.examine(task, self._tell)
            case OpenStage():
                self._open(order)
            case ToStageProcess(stage=name, message=message):
                if stage := self._stages.get(name):
                    stage.take(message)
            case CloseStage(stage=name):
                if stage := self._stages.get(name):
                    self._end([stage])

    def _open(self, order: OpenStage) -> None:
        with self._lock:
            if self._closing.is_set() or order.stage in self._stages:
                return
            try:
                self._stages[order.stage] = NodeStage(order, self._place, self._tell, self._publish)
            except EdgeAgentError as error:
                self._tell(TaskFailed.of(order.stage, error))

    def _leave(self) -> None:
        """The node is out: its stages are of no use any more, and nobody is its neighbour."""
        self._neighbours = {}
        with self._lock:
            stages = list(self._stages.values())
        if stages:
            self._end(stages)

    def _end(self, stages: Sequence[NodeStage]) -> None:
        """End stages, which takes a while."""
        threading.Thread(target=node_stage.end, args=(stages, _END_SECONDS), name="ending stages", daemon=True).start()

    # On any thread

    def _tell(self, message: FromNode) -> None:
        if self._client is not None:
            self._client.tell(message)

    def _neighbour(self, key: str) -> Neighbour | None:
        return self._neighbours.get(key)

    def _may_fetch(self, key: str, _: str) -> bool:
        return key in self._neighbours or key == self._fleet

    def _locate(self, peer: Peer) -> Peer:
        """See Workplace."""
        if peer.host == HEAD and self._at is not None:
            host = self._at[0]
        elif peer.host == self._keys.public:
            host = LOOPBACK
        elif (neighbour := self._neighbour(peer.host)) is not None:
            host = reach(neighbour.addresses, peer.port)
        else:
            raise StageError("the next stage is on a node that is not in the fleet", where=peer.host)
        return peer.model_copy(update={"host": host})

    def _set_rate(self, rate: float) -> None:
        self._bulk.pace.rate = self._place.packages.pace.rate = rate

    def _show_measuring(self, activity: Activity | None) -> None:
        self._show(measuring=activity)

    def _show(self, **changes: object) -> None:
        with self._lock:
            self._publish(**changes)

    def _publish(self, **changes: object) -> None:
        """Tell the observer what has changed, in the order in which it did."""
        with self._lock:
            self._stages = {name: stage for name, stage in self._stages.items() if not stage.has_ended}
            stages = tuple(stage.status for stage in self._stages.values())
            status = self.status.model_copy(update={**changes, "stages": stages})
            if status != self.status:
                if (status.state, status.why) != (self.status.state, self.status.why):
                    _log.info("%s%s", status.state, f": {status.why}" if status.why else "")
                self.status = status
                self._observe(status)
