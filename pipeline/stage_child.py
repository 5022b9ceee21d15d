"""A stage process, seen from the agent that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque

from pydantic import ValidationError

from pipeline.control import Failed, Measure, Start, ToStage, from_stage, line
from pipeline.stages import LOOPBACK, LOST_HINT, Heard
from shards.errors import StageError

_TUNABLES = "GLIBC_TUNABLES"
_LAST_LINES = 8
"""Lines of a process's standard error that are kept for error messages."""


class StageChild:
    """One stage process.

    Args:
        name: What errors call it.
        task: What it shall load or measure; it begins at once.
        heard: Called with each message, and with the StageError that names the end of the process, once and last. On
            a thread of this object's own.

    Raises:
        StageError: the system does not start the process.
    """

    host = LOOPBACK
    """By what name the others of its chain know its computer."""

    def __init__(self, name: str, task: Start | Measure, heard: Heard) -> None:
        self.name = name
        self._heard = heard
        self._failed: Failed | None = None
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        # Of a process group of its own, so that Ctrl-C in a terminal reaches the agent alone. -P: a folder named like
        # one of ours, where the user happens to be, is not imported.
        group = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pipeline.stage_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                env=environment(),
                process_group=None if group else 0,
                creationflags=group,
            )
        except OSError as error:
            hint = "Close other programs, or use fewer stages."
            raise StageError(f"its process cannot be started ({error})", where=name, hint=hint) from None
        self._errors = threading.Thread(target=self._read_errors, name=f"{name}: errors", daemon=True)
        self._errors.start()
        threading.Thread(target=self._read, name=f"{name}: messages", daemon=True).start()
        self.tell(task)

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def tell(self, message: ToStage) -> None:
        """Send a message. A process that has ended does not hear it; its end is reported anyway."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line(message))
            self._process.stdin.flush()
        except (OSError, ValueError):
            pass

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the process; False if it still runs after `seconds`."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def terminate(self) -> None:
        """Ask the operating system to end the process."""
        self._process.terminate()

    def kill(self) -> None:
        """Make the operating system end the process."""
        self._process.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            try:
                message = from_stage(text)
            except ValidationError:
                self._last_lines.append(text.rstrip())
                continue
            if isinstance(message, Failed):
                self._failed = message
            else:
                self._heard(self, message)
        self._process.wait()
        self._errors.join(timeout=5)
        self._heard(self, self._end())

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for text in self._process.stderr:
            if text.strip():
                self._last_lines.append(text.rstrip())

    def _end(self) -> StageError:
        if self._failed is not None:
            return self._failed.error(self.name)
        said = "".join(f"\n  {text}" for text in self._last_lines)
        return StageError(
            f"the process ended ({_meaning(self._process.returncode)})",
            where=self.name,
            hint=f"{LOST_HINT} Its last words:{said}" if said else LOST_HINT,
        )


def _meaning(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        try:
            return f"exit code {code}: {signal.Signals(-code).name}"
        except ValueError:
            pass
    return f"exit code {code}"


def environment() -> dict[str, str]:
    """Of a child: glibc's allocations, weights and all, in huge pages where Linux lets a program ask for them.

    The processor then misses fewer addresses while it streams the weights: a step takes some 6 % less. No other system
    and no other C library reads the variable.
    """
    tunables = filter(None, (os.environ.get(_TUNABLES), "glibc.malloc.hugetlb=1"))
    return os.environ | {_TUNABLES: ":".join(tunables)}
