"""A PC of the lab."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from lab_parts.link import Link
from lab_parts.namespaces import LabError, Namespace
from lab_parts.process import Process


class Host:
    """Where commands run: `eth0` with `ipv4` and `ipv6`, a host name, and `home` for all that a user keeps."""

    def __init__(self, index: int, hub: Namespace, folder: Path) -> None:
        self.name = f"pc{index}"
        self.ipv4, self.ipv6 = f"10.77.0.{index + 1}", f"fd77::{index + 1:x}"
        self.home = folder / self.name / "home"
        self.home.mkdir(parents=True)
        self._logs = folder / self.name
        self._processes: list[Process] = []
        self._namespace = Namespace(self.name, inside=hub)
        self.link = Link(hub, self._namespace, index, (f"{self.ipv4}/24", f"{self.ipv6}/64"))

    def start(self, command: Sequence[str | Path]) -> Process:
        """Start a command, in its home folder; it ends with the lab."""
        words = [str(word) for word in command]
        log = self._logs / f"{len(self._processes):03}-{Path(words[0]).name}"
        process = Process(self._enter("no-fork"), words, self._environment(), log)
        self._processes.append(process)
        return process

    def run(self, command: Sequence[str | Path], timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end.

        Raises:
            LabError: it still runs after `timeout` seconds; it is killed then.
        """
        process = self.start(command)
        try:
            code = process.wait(timeout)
        except LabError:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.command, code, process.stdout, process.stderr)

    def entry(self) -> Path:
        """A script that runs a command, or else a shell, on this host."""
        script = self._logs / "enter"
        unset = (f"--unset={name}" for name in _foreign(os.environ))
        words = shlex.join([*self._enter(), "env", *unset, f"HOME={self.home}"])
        script.write_text(f'#!/bin/sh\n[ $# -gt 0 ] || set -- sh\nexec {words} "$@"\n', "utf-8")
        script.chmod(0o700)
        return script

    def close(self) -> None:
        """Switch it off: all of its processes are killed and gone when this returns."""
        self.link.close()
        self._namespace.close()
        for process in self._processes:
            process.wait()

    def _enter(self, *options: str) -> list[str]:
        return self._namespace.enter("net", "mount", "uts", "pid", f"wd={self.home}", *options)

    def _environment(self) -> dict[str, str]:
        foreign = set(_foreign(os.environ))
        return {name: value for name, value in os.environ.items() if name not in foreign} | {"HOME": str(self.home)}


def _foreign(names: Iterable[str]) -> list[str]:
    """Variables that lead to the user's own folders, or to proxies that this network does not have."""
    return [name for name in names if name.startswith("XDG_") or name.lower().endswith("_proxy")]
