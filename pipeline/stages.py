"""A stage as its chain sees it, wherever its process runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from pipeline.control import FromStage, Stop, ToStage
from shards.errors import StageError

LOOPBACK = "127.0.0.1"
LOST_HINT = "Ask again in a moment; if it still fails, start the model again."
"""What to do where a chain is lost: a fleet makes another one by itself."""

_STOP_SECONDS = 2.0
"""A stage may finish the step at hand before it is ended from outside."""

_TERMINATE_SECONDS = 1.0
_KILL_SECONDS = 10.0


class Stage(Protocol):
    """One stage process. Its messages come to a Heard, last of all a StageError that names its end."""

    @property
    def name(self) -> str:
        """What errors call it."""
        ...

    @property
    def host(self) -> str:
        """By what name the others of its chain know its computer."""
        ...

    @property
    def pid(self) -> int | None:
        """Number of the process, if it is one of this computer."""
        ...

    def tell(self, message: ToStage) -> None:
        """Send a message. A process that has ended does not hear it; its end is reported anyway."""
        ...

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the process; False if it still runs after `seconds`."""
        ...

    def terminate(self) -> None:
        """Ask the operating system to end the process."""
        ...

    def kill(self) -> None:
        """Make the operating system end the process."""
        ...


Heard = Callable[[Stage, FromStage | StageError], None]
"""Hears a stage, on a thread of the stage's own."""


def stop(stages: Sequence[Stage]) -> None:
    """End stages: ask, wait, terminate, kill. All that can be reached have ended when it returns."""
    for stage in stages:
        stage.tell(Stop())
    steps: tuple[tuple[float, Callable[[Stage], None]], ...] = (
        (_STOP_SECONDS, lambda stage: stage.terminate()),
        (_TERMINATE_SECONDS, lambda stage: stage.kill()),
        (_KILL_SECONDS, lambda stage: None),
    )
    for seconds, end in steps:
        deadline = monotonic() + seconds
        for stage in stages:
            if not stage.wait(max(0.0, deadline - monotonic())):
                end(stage)
