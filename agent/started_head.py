"""Heads that a screen starts on this PC: processes of their own, which may outlive it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from agent import paths
from agent.address import DEFAULT_HOST, DEFAULT_PORT
from shards import manifest
from shards.errors import ConfigurationError, StageError

_LOG_BYTES = 64 * 2**10
_LOG_LINES = 200
_END_SECONDS = 8.0
"""More than a head gives itself to end."""


class HeadProcess:
    """A head that runs in a process without a terminal, and writes to a file."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self._process, self._log = process, log
        self.url = url

    @property
    def process(self) -> int:
        """Its process's number."""
        return self._process.pid

    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def log(self) -> list[str]:
        """The last lines of what it said, oldest first."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
                return file.read().decode("utf-8", "replace").splitlines()[-_LOG_LINES:]
        except OSError as error:
            return [f"{self._log} cannot be read ({error.strerror})"]

    def stop(self) -> None:
        """End it, and wait until it has ended. Its stages end with it: each notices that its parent has gone."""
        if self.is_running():
            self._process.terminate()
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()


class HeadStarter:
    """Starts heads, as `edge-agent serve PACKAGE` does.

    Args:
        log: The file a head writes what it says to.
    """

    def __init__(self, log: Path) -> None:
        self._log = log

    def packages(self) -> list[Path]:
        """Model packages in the folder we are in and in the cache, by name."""
        return sorted(
            {
                package.absolute()
                for folder in (Path(), paths.cache_folder() / "packages")
                for package in _packages_in(folder)
            }
        )

    def start(self, package: Path) -> HeadProcess:
        """Serve a package.

        Raises:
            PackageError: it is none.
            StageError: the process cannot be started.
        """
        manifest.read(package)
        port = _free_port()
        command = [
            sys.executable,
            "-X",
            "utf8",
            "-u",
            "-P",
            "-m",
            "agent",
            "serve",
            str(package.absolute()),
            "--port",
            str(port),
        ]
        try:
            self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._log.open("wb") as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # apart from the terminal, whose Ctrl-C and whose end are not meant for it
                    start_new_session=True,
                    creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
                    | getattr(subprocess, "CREATE_NO_WINDOW", 0),
                )
        except OSError as error:
            raise StageError(f"a head cannot be started ({error.strerror})", where=str(self._log.parent)) from error
        return HeadProcess(process, f"http://{DEFAULT_HOST}:{port}", self._log)


def _packages_in(folder: Path) -> Iterator[Path]:
    try:
        for each in folder.iterdir():
            if (each / manifest.MANIFEST).is_file():
                yield each
    except OSError:  # not there, or not ours to look into
        return


def _free_port() -> int:
    """The usual port if nobody has it, else another."""
    for port in (DEFAULT_PORT, 0):
        with socket.socket() as tried:
            if os.name == "posix":
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((DEFAULT_HOST, port))
                return int(tried.getsockname()[1])
            except OSError:
                continue
    raise ConfigurationError("there is no free port on this PC", where=DEFAULT_HOST)
