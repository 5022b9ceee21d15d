"""A draft model on its way to another node."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pipeline.stages import Stage

_HALT_SECONDS = 5.0
"""For a node to end what it was loading."""


class DraftMove:
    """Something that loads a draft elsewhere, on a thread of its own, until it is done or halted.

    Args:
        work: What it does; asks `is_halted` before it takes effect.
    """

    def __init__(self, work: Callable[[DraftMove], None]) -> None:
        self._halted = threading.Event()
        self._stages: list[Stage] = []
        self._lock = threading.Lock()
        """Held to begin a stage, and to prevent it."""
        self._thread = threading.Thread(target=work, args=(self,), name="moving a draft", daemon=True)
        self._thread.start()

    @property
    def is_on(self) -> bool:
        """Whether it is not over."""
        return self._thread.is_alive()

    @property
    def is_halted(self) -> bool:
        """Whether it is of no use any more."""
        return self._halted.is_set()

    def follow(self, stage: Stage) -> None:
        """A stage has begun to load; it is ended with this."""
        with self._lock:
            self._stages.append(stage)
            if not self._halted.is_set():
                return
        stage.terminate()

    def halt(self) -> None:
        """End it, and wait for its end; what has taken effect before stays so."""
        with self._lock:
            self._halted.set()
            stages = list(self._stages)
        if not self.is_on:
            return
        for stage in stages:
            stage.terminate()
        self._thread.join(_HALT_SECONDS)
