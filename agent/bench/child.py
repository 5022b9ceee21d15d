"""A control in a process of its own, which its parent talks to in JSON lines: each line it is sent has one answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from shards.errors import StageError

_END_SECONDS = 5.0


class Child:
    """The parent's side, a context manager. The process leaves by itself, and cleans up, when its stdin ends.

    Args:
        module: What it runs.
        name: What errors call it.
        environment: Of the process; None: this one's.
    """

    def __init__(self, module: str, name: str, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=environment,
        )

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a line; a process that has ended is found out by the next `hear`."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Wait for an answer.

        Raises:
            StageError: the process says that it has failed, or has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise StageError(f"the {self.name} process ended with code {self._process.wait()}", where="bench")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise StageError(answer["failed"], where=f"bench: {self.name}")
        return answer

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a line and wait for its answer; raises as `hear`."""
        self.tell(message)
        return self.hear()

    def begin(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for the first time: what it shall be. If it says that it has failed, or has ended, it is closed."""
        try:
            return self.ask(message)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
