"""A command that runs on a host of the lab."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from lab_parts.namespaces import LabError

_POLL_SECONDS = 0.02
_TAIL = 2000
_WAITER = ("sh", "-c", 'exec 3>&2 2>/dev/null; (exec "$@" 2>&3 3>&-); exit $?', "sh")
"""Keeps to itself what a shell says when a command is killed."""


class Process:
    """A running command; what it prints goes to two files.

    Outside of the host a shell waits for the command and takes over its exit code; signals go to the command itself.
    """

    def __init__(
        self, enter: Sequence[str], command: Sequence[str], environment: Mapping[str, str], output: Path
    ) -> None:
        self.command = tuple(command)
        self.stdout_file, self.stderr_file = output.with_suffix(".out"), output.with_suffix(".err")
        with self.stdout_file.open("wb") as out, self.stderr_file.open("wb") as err:
            self._waiter = subprocess.Popen(
                [*enter, *_WAITER, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(environment),
                start_new_session=True,
            )  # fmt: skip
        self._process = self._find()

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self.stdout_file.read_text("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """What it has printed so far to stderr."""
        return self.stderr_file.read_text("utf-8", "replace")

    @property
    def returncode(self) -> int | None:
        """Its exit code, or 128 + the signal that ended it; None: it runs."""
        return self._waiter.poll()

    @property
    def pid(self) -> int | None:
        """Its number on the machine; None if it was over before that could be found."""
        return self._process.pid if self._process else None

    def wait(self, timeout: float | None = 60.0) -> int:
        """Wait for its end, at most `timeout` seconds, and give its exit code.

        Raises:
            LabError: it still runs after `timeout` seconds.
        """
        try:
            return self._waiter.wait(timeout)
        except subprocess.TimeoutExpired:
            raise LabError(f"still running after {timeout:g} s: {self}") from None

    def wait_for(self, pattern: str, timeout: float = 30.0) -> re.Match[str]:
        """Wait until its stdout, or else its stderr, has a match of a regular expression (`^` and `$`: of a line).

        Raises:
            LabError: it ended without, or did not print it within `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while True:
            over = self.returncode is not None or time.monotonic() >= end
            for text in (self.stdout, self.stderr):
                if match := re.search(pattern, text, re.MULTILINE):
                    return match
            if over:
                raise LabError(f"no match of {pattern!r} within {timeout:g} s: {self}")
            time.sleep(_POLL_SECONDS)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._signal(signal.SIGINT)

    def terminate(self) -> None:
        """SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9, to this process alone, not its children; returns when it is gone."""
        self._signal(signal.SIGKILL)
        self.wait()

    def suspend(self) -> None:
        """Stop it and its children where they are, as a PC that goes to sleep does."""
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def resume(self) -> None:
        """Let it go on."""
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.send_signal(number)

    def _family(self) -> Iterator[psutil.Process]:
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                yield from (self._process, *self._process.children(recursive=True))

    def _find(self) -> psutil.Process | None:
        """The command's process, the only child of the one that waits for it."""
        while self._waiter.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                if children := psutil.Process(self._waiter.pid).children():
                    return children[0]
            time.sleep(0.002)
        return None

    def __str__(self) -> str:
        state = "running" if self.returncode is None else f"exit code {self.returncode}"
        tails = [f"--- {name}\n{text[-_TAIL:]}" for name, text in (("stdout", self.stdout), ("stderr", self.stderr))]
        return "\n".join([f"{' '.join(self.command)} ({state})", *tails])
