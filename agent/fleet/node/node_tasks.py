"""Measurements on a node: what a model's parts cost here, and what the ways to other nodes are like."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from agent.fleet.bulk.link_probe import probe
from agent.fleet.control.messages import (
    LONGEST_TEXT,
    FromNode,
    Key,
    LinkMeasure,
    LinksMeasured,
    MeasureLinks,
    MeasureModel,
    ModelMeasured,
    Neighbour,
    TaskFailed,
    TaskProgress,
)
from agent.fleet.discovery.reach import reach
from agent.fleet.node.node_packages import of_measurement
from agent.fleet.node.node_stage import Workplace
from agent.fleet.node.node_status import Activity
from pipeline.link import KeyPair
from shards.errors import EdgeAgentError, StageError
from shards.profile import CostProfile
from shards.progress import Progress
from shards.runtime import EngineName, StageConfig

_MEASURING_LINKS = "measuring links"

_log = logging.getLogger(__name__)

Tell = Callable[[FromNode], None]
"""Sends a message to the head; must not block."""

Task = MeasureModel | MeasureLinks


class NodeTasks:
    """Carries out measurements one after another, on a thread of its own: two at a time would measure each other.

    Args:
        place: What they use.
        keys: Of this node.
        neighbour: Finds a node of the fleet by its key.
        show: Told what is being done, and None when nothing is; must be quick.
        rated: Told the bytes per second of the slowest way that was measured.
    """

    def __init__(
        self,
        place: Workplace,
        keys: KeyPair,
        neighbour: Callable[[Key], Neighbour | None],
        show: Callable[[Activity | None], None],
        rated: Callable[[float], None],
    ) -> None:
        self._place, self._keys, self._neighbour = place, keys, neighbour
        self._show, self._rated = show, rated
        self._inbox: SimpleQueue[tuple[Task, Tell] | None] = SimpleQueue()
        self._cancel = threading.Event()
        self._thread = threading.Thread(target=self._run, name="measuring", daemon=True)
        self._thread.start()

    def add(self, task: Task, tell: Tell) -> None:
        """Carry out a measurement when those before it are done, and `tell` of it."""
        self._inbox.put((task, tell))

    def cancel(self) -> None:
        """End early, and begin nothing more."""
        self._cancel.set()
        self._inbox.put(None)

    def wait(self, seconds: float) -> None:
        """Wait for the end, but not longer than so many seconds."""
        self._thread.join(seconds)

    def _run(self) -> None:
        while (item := self._inbox.get()) is not None and not self._cancel.is_set():
            task, tell = item
            try:
                tell(self._carry_out(task, tell))
            except EdgeAgentError as error:
                _log.info("a measurement has failed: %s", error)
                tell(TaskFailed.of(task.task, error))
            except Exception as error:
                _log.exception("a defect of edge-agent, please report it: a measurement has failed")
                tell(TaskFailed.of(task.task, error))
            finally:
                self._show(None)

    def _carry_out(self, task: Task, tell: Tell) -> FromNode:
        def report(what: str, done: float, total: float) -> None:
            if self._cancel.is_set():
                raise StageError("the node is closing", where=what)
            self._show(Activity(what=what, done=done, total=total))
            tell(TaskProgress(task=task.task, what=what, done=done, total=total))

        if isinstance(task, MeasureModel):
            return self._measure_model(task, report)
        links = []
        for done, key in enumerate(task.peers):
            report(_MEASURING_LINKS, done, len(task.peers))
            if (link := self._measure_link(key)) is not None:
                links.append(link)
        report(_MEASURING_LINKS, len(task.peers), len(task.peers))
        if links:
            self._rated(min(link.bytes_per_second for link in links))
        return LinksMeasured(task=task.task, links=tuple(links))

    def _measure_model(self, task: MeasureModel, report: Progress) -> ModelMeasured:
        """On one engine after the other; one that fails does not keep the others from being used."""
        profiles: list[CostProfile] = []
        failures: dict[EngineName, EdgeAgentError] = {}
        for engine in task.engines:
            try:
                profiles.append(self._measure_engine(task, engine, report))
            except EdgeAgentError as error:
                if self._cancel.is_set():
                    raise
                _log.warning("%s cannot be measured: %s", engine, error)
                failures[engine] = error
        if not profiles:
            raise failures[task.engines[0]]
        told = {engine: str(error)[:LONGEST_TEXT] for engine, error in failures.items()}
        return ModelMeasured(task=task.task, profiles=tuple(profiles), failures=told)

    def _measure_engine(self, task: MeasureModel, engine: EngineName, report: Progress) -> CostProfile:
        from pipeline.measuring import cost_profile

        place, wanted = self._place, of_measurement(engine)
        store = place.packages.obtain(task.model, wanted, report, self._cancel)
        like = StageConfig(
            package=store.folder,
            first_layer=0,
            end_layer=store.manifest.facts.layers,
            engine=engine,
            mode=task.mode,
            kv_precision=task.kv_precision,
            device=task.device,
        )
        config = place.settings.apply(like, store.folder, place.hardware())

        def measured() -> CostProfile:
            return cost_profile(config, store.manifest, place.cache, report, again=task.again, cancel=self._cancel)

        try:
            return measured()
        except StageError:
            if self._cancel.is_set() or not place.packages.repair(store, wanted, report):
                raise
        # it failed because of wrong bytes on disk
        place.packages.obtain(task.model, wanted, report, self._cancel)
        return measured()

    def _measure_link(self, key: Key) -> LinkMeasure | None:
        """The way to a node; None if it cannot be reached."""
        neighbour = self._neighbour(key)
        if neighbour is None:
            return None
        try:
            address = reach(neighbour.addresses, neighbour.bulk_port)
            latency_ms, rate = probe(address, neighbour.bulk_port, key, self._keys)
        except EdgeAgentError as error:
            _log.info("the way to %s could not be measured: %s", neighbour.name, error)
            return None
        return LinkMeasure(peer=key, latency_ms=latency_ms, bytes_per_second=rate)
