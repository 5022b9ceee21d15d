"""One stage on this node: its weights, its process, and the messages that pass between that and the head."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from time import monotonic

from agent.fleet.control.messages import FromNode, FromStageProcess, Hardware, OpenStage, TaskFailed
from agent.fleet.node.node_packages import NodePackages, of_stage
from agent.fleet.node.node_settings import NodeSettings
from agent.fleet.node.node_status import Activity, StageStatus
from pipeline import stages
from pipeline.control import Connect, Echo, FromStage, Progress, Ready, Start, Stop, ToStage
from pipeline.link import Peer
from pipeline.stage_child import StageChild
from pipeline.stages import Stage
from shards.edges import layer_words, layers_of
from shards.errors import EdgeAgentError, StageError, WireError
from shards.store import PackageStore

_CLOSED = "the stage was closed before it had begun"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Workplace:
    """What a node's stages and measurements have in common."""

    settings: NodeSettings
    packages: NodePackages
    hardware: Callable[[], Hardware]
    locate: Callable[[Peer], Peer]
    """Puts an address that can be connected to in place of a peer's node. May take seconds; raises StageError."""
    cache: Path
    """Folder for what is measured here."""


class NodeStage:
    """A stage, on a thread of its own until it has ended; its last message is a TaskFailed that says how.

    Args:
        order: What the head wants.
        place: Where it runs.
        tell: Sends a message to the head; must not block.
        changed: Called when `status` has changed, and when the stage has ended; must be quick.
    """

    def __init__(
        self, order: OpenStage, place: Workplace, tell: Callable[[FromNode], None], changed: Callable[[], None]
    ) -> None:
        self._order, self._place, self._tell, self._changed = order, place, tell, changed
        config = _start(order).config
        self.name = order.stage
        self.status = StageStatus(model=order.model.name, **layers_of(config))
        self._title = f"layers {layer_words(config)}"
        self._wanted = of_stage(config.first_layer, config.end_layer, config.engine)
        self._inbox: SimpleQueue[ToStage | StageError] = SimpleQueue()
        """From the head, and the end of the process."""
        self._child: StageChild | None = None
        self._cancel = threading.Event()
        self._lock = threading.Lock()
        """Held to start the process, and to prevent it."""
        self._status_lock = threading.Lock()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name=self._title, daemon=True).start()

    @property
    def has_ended(self) -> bool:
        """Whether it is over, its process gone."""
        return self._ended.is_set()

    def take(self, message: ToStage) -> None:
        """Pass a message of the head on to the process, after those that came before; does not wait."""
        if isinstance(message, Stop):
            self._cancel.set()
        self._inbox.put(message)

    def cancel(self) -> StageChild | None:
        """See that no process is started any more; one that was has to be ended by the caller."""
        with self._lock:
            self._cancel.set()
            return self._child

    def wait(self, seconds: float) -> bool:
        """Wait for the end; whether it has come."""
        return self._ended.wait(seconds)

    # On its own thread

    def _run(self) -> None:
        end: Exception
        try:
            end = self._live()
        except EdgeAgentError as error:
            end = error
        except Exception as error:
            _log.exception("a defect of edge-agent, please report it: a stage has failed")
            end = error
        _log.info("%s: ended: %s", self._title, end)
        self._ended.set()
        self._tell(TaskFailed.of(self.name, end))
        self._changed()

    def _live(self) -> StageError:
        store = self._fetch()
        end = self._work(store)
        if self.status.state != "loading" or self._cancel.is_set():
            return end
        # it could not load; if that is because of the bytes on disk, right ones help
        if self._place.packages.repair(store, self._wanted, self._report):
            return self._work(self._fetch())
        return end

    def _fetch(self) -> PackageStore:
        self._show(state="fetching")
        return self._place.packages.obtain(self._order.model, self._wanted, self._report, self._cancel)

    def _work(self, store: PackageStore) -> StageError:
        """Run a process; returns how it ended."""
        self._show(state="loading", activity=None)
        place, start = self._place, _start(self._order)
        config = place.settings.apply(start.config, store.folder, place.hardware())
        with self._lock:
            if self._cancel.is_set():
                raise StageError(_CLOSED, where=self._title)
            self._child = child = StageChild(self._title, Start(config=config, cache=place.cache), self._hear)
        try:
            while True:
                message = self._inbox.get()
                if isinstance(message, StageError):
                    return message
                child.tell(self._addressed(message))
                if isinstance(message, Connect):
                    self._show(state="serving")
        finally:
            stages.stop([child])

    def _addressed(self, message: ToStage) -> ToStage:
        """The message with addresses in place of nodes."""
        match message:
            case Connect(next=peer):
                return message.model_copy(update={"next": self._place.locate(peer)})
            case Echo(first=peer):
                return message.model_copy(update={"first": self._place.locate(peer)})
        return message

    def _report(self, what: str, done: float, total: float) -> None:
        if self._cancel.is_set():
            raise StageError(_CLOSED, where=self._title)
        self._pass_on(Progress(what=what, done=done, total=total))

    # On the process's thread as well

    def _hear(self, _: Stage, heard: FromStage | StageError) -> None:
        if isinstance(heard, StageError):
            self._inbox.put(heard)
            return
        if isinstance(heard, Ready):
            self._show(state="ready", activity=None)
        self._pass_on(heard)

    def _pass_on(self, message: FromStage) -> None:
        if isinstance(message, Progress):
            self._show(activity=Activity(what=message.what, done=message.done, total=message.total))
        self._tell(FromStageProcess(stage=self.name, message=message))

    def _show(self, **changes: object) -> None:
        if "state" in changes:
            _log.info("%s: %s", self._title, changes["state"])
        with self._status_lock:
            self.status = self.status.model_copy(update=changes)
        self._changed()


def end(of: Sequence[NodeStage], seconds: float) -> None:
    """End stages, whatever they do; after so many seconds all that can be ended have ended."""
    deadline = monotonic() + seconds
    stages.stop([child for stage in of if (child := stage.cancel()) is not None])
    for stage in of:
        stage.wait(max(0.0, deadline - monotonic()))


def _start(order: OpenStage) -> Start:
    if not isinstance(order.start, Start):
        raise WireError(f"a stage begins with start, not with {order.start.kind}", where="control")
    return order.start
