"""A stage on another node, as its chain sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from agent.fleet.control.messages import CloseStage, ModelRef, OpenStage, ToNode, ToStageProcess
from pipeline.control import FromStage, Start, ToStage
from pipeline.stages import Heard
from shards.errors import StageError


class RemoteStage:
    """One stage process on a node; see `pipeline.stages.Stage`.

    Args:
        name: What errors call it.
        stage: Its name in messages.
        node: The node's key.
        model: The package its layers are from.
        task: What it shall load; it begins at once.
        heard: Called with its messages, and with the StageError that names its end, once and last.
        tell_node: Sends a message to the node.
    """

    pid = None
    """Its process is no concern of this computer."""

    def __init__(
        self,
        name: str,
        stage: str,
        node: str,
        model: ModelRef,
        task: Start,
        heard: Heard,
        tell_node: Callable[[ToNode], None],
    ) -> None:
        self.name, self.host = name, node
        self._stage, self._heard, self._tell_node = stage, heard, tell_node
        self._ended = threading.Event()
        self._ending = threading.Lock()
        tell_node(OpenStage(stage=stage, model=model, start=task))

    def tell(self, message: ToStage) -> None:
        """Send a message."""
        if not self._ended.is_set():
            self._tell_node(ToStageProcess(stage=self._stage, message=message))

    def hear(self, message: FromStage) -> None:
        """Called with what the node relays."""
        if not self._ended.is_set():
            self._heard(self, message)

    def end(self, error: StageError) -> None:
        """Called when the process, or the node, is gone."""
        with self._ending:
            if self._ended.is_set():
                return
            self._ended.set()
        self._heard(self, error)

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the process; False if it still runs after `seconds`."""
        return self._ended.wait(seconds)

    def terminate(self) -> None:
        """Have the node end the process."""
        self._tell_node(CloseStage(stage=self._stage))

    def kill(self) -> None:
        """Give the process up: its node has been told, and does not answer."""
        self.end(StageError("the node does not say that the stage has ended", where=self.name))
