"""What the head has ordered of its nodes, and what becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from agent.fleet.control.messages import (
    CloseStage,
    Examine,
    Examined,
    FromNode,
    FromStageProcess,
    LinkMeasure,
    LinksMeasured,
    MeasureLinks,
    MeasureModel,
    ModelMeasured,
    ModelRef,
    TaskFailed,
    TaskProgress,
    ToNode,
)
from agent.fleet.head.remote_stage import RemoteStage
from pipeline.control import Start
from pipeline.stages import Heard
from shards.errors import StageError
from shards.progress import Progress, silent
from shards.runtime import EngineName, KvPrecision, Mode

Tell = Callable[[str, ToNode], None]
"""Sends a message to the node of a key."""


@dataclass(frozen=True, slots=True)
class _Task:
    node: str
    answer: type[FromNode]
    """The message that carries its result."""
    future: Future[Any]
    progress: Progress


class Orders:
    """Measurements, examinations and stages on nodes, each followed to its end.

    Its methods may be called from any thread. A future that is cancelled is not waited for any more.

    Args:
        tell: Sends a message to a node; must not block.
        name_of: What a node is called.
        is_in: Whether a node is in; of one that has left `lose` tells, once.
    """

    def __init__(self, tell: Tell, name_of: Callable[[str], str], is_in: Callable[[str], bool]) -> None:
        self._tell, self._name_of, self._is_in = tell, name_of, is_in
        self._tasks: dict[str, _Task] = {}
        self._stages: dict[str, RemoteStage] = {}
        self._lock = threading.Lock()

    def measure_model(
        self,
        node: str,
        model: ModelRef,
        engines: Sequence[EngineName],
        mode: Mode,
        device: str,
        progress: Progress = silent,
        *,
        kv_precision: KvPrecision | None = None,
        again: bool = False,
    ) -> Future[ModelMeasured]:
        """Have a node measure what the parts of a model cost on engines; the future's error is a StageError."""

        def message(task: str) -> MeasureModel:
            return MeasureModel(
                task=task,
                model=model,
                engines=tuple(engines),
                mode=mode,
                kv_precision=kv_precision,
                device=device,
                again=again,
            )

        return self._begin(node, ModelMeasured, message, progress)

    def measure_links(self, node: str, peers: Sequence[str]) -> Future[tuple[LinkMeasure, ...]]:
        """Have a node measure the ways to others; the future's error is a StageError."""
        return self._begin(node, LinksMeasured, lambda task: MeasureLinks(task=task, peers=tuple(peers)), silent)

    def examine(self, node: str) -> Future[Examined]:
        """Have a node look at itself; the future's error is a StageError."""
        return self._begin(node, Examined, lambda task: Examine(task=task), silent)

    def open_stage(self, node: str, name: str, model: ModelRef, task: Start, heard: Heard) -> RemoteStage:
        """Have a node begin a stage."""
        key = uuid4().hex
        with self._lock:  # its end may be heard before it is made
            stage = self._stages[key] = RemoteStage(
                name, key, node, model, task, lambda of, said: self._hear_stage(key, heard, of, said), self._to(node)
            )
        self._check(node)
        return stage

    def hear(self, node: str, message: FromNode) -> None:
        """Take in what a node says. What it says of others' work is ignored."""
        match message:
            case ModelMeasured(task=task):
                self._finish(node, task, message, ModelMeasured)
            case LinksMeasured(task=task, links=links):
                self._finish(node, task, links, LinksMeasured)
            case Examined(task=task):
                self._finish(node, task, message, Examined)
            case TaskProgress(task=task, what=what, done=done, total=total):
                if (known := self._tasks.get(task)) and known.node == node:
                    known.progress(what, done, total)
            case FromStageProcess(stage=name, message=said):
                if stage := self._stage(node, name):
                    stage.hear(said)
                else:  # opened for a chain that was given up meanwhile
                    self._tell(node, CloseStage(stage=name))
            case TaskFailed(task=task):
                if stage := self._stage(node, task):
                    stage.end(message.error(self._name_of(node)))
                else:
                    self._finish(node, task, message.error(self._name_of(node)))
            case _:
                pass

    def lose(self, node: str, why: str) -> None:
        """End everything that a node was at work on."""
        error = StageError(f"the node is gone ({why})", where=self._name_of(node), hint="Ask again in a moment.")
        with self._lock:
            tasks = [name for name, task in self._tasks.items() if task.node == node]
            stages = [stage for stage in self._stages.values() if stage.host == node]
        for name in tasks:
            self._finish(node, name, error)
        for stage in stages:
            stage.end(error)

    def _begin(
        self, node: str, answer: type[FromNode], message: Callable[[str], ToNode], progress: Progress
    ) -> Future[Any]:
        name, future = uuid4().hex, Future[Any]()
        with self._lock:
            self._tasks[name] = _Task(node, answer, future, progress)
        future.add_done_callback(lambda _: self._drop(name))
        self._tell(node, message(name))
        self._check(node)
        return future

    def _check(self, node: str) -> None:
        """A node may have left before the order was on record, and will not be lost again."""
        if not self._is_in(node):
            self.lose(node, "it has left")

    def _stage(self, node: str, name: str) -> RemoteStage | None:
        with self._lock:
            stage = self._stages.get(name)
        return stage if stage and stage.host == node else None

    def _drop(self, name: str) -> None:
        with self._lock:
            self._tasks.pop(name, None)

    def _finish(self, node: str, name: str, outcome: object, answer: type[FromNode] | None = None) -> None:
        """A task has ended: in an error, or in what an answer of the right kind says."""
        with self._lock:
            task = self._tasks.get(name)
            if task is None or task.node != node or answer not in (None, task.answer):
                return
            del self._tasks[name]
        if not task.future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Exception):
            task.future.set_exception(outcome)
        else:
            task.future.set_result(outcome)

    def _to(self, node: str) -> Callable[[ToNode], None]:
        return lambda message: self._tell(node, message)

    def _hear_stage(self, key: str, heard: Heard, stage: Any, said: Any) -> None:
        if isinstance(said, StageError):
            with self._lock:
                self._stages.pop(key, None)
        heard(stage, said)
