"""edge-agent on the hosts of a lab."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab_parts.lab import Lab
from lab_parts.namespaces import LabError
from lab_parts.process import Process

PROGRAM = Path(sys.executable).with_name("edge-agent")
URL = "http://127.0.0.1:8114"
_WATCH = Path(__file__).with_name("watch.py")
_MEASUREMENTS = Path(".cache", "edge-agent", "tuning")
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Sight:
    """The fleet at a moment."""

    at: float
    """Seconds of the monotonic clock."""
    nodes: list[str]
    """Names, sorted."""
    chains: list[list[str]]
    """Of each copy of the model, the nodes of its stages."""
    work: dict[str, str]
    """What nodes do beside serving, by their names."""


class Agents:
    """Starts them, and asks the head, which is `pc0` unless told otherwise."""

    def __init__(self, lab: Lab, head: int = 0) -> None:
        self._lab = lab
        self._head = lab.hosts[head]
        self._watch = self._head.start([sys.executable, "-I", _WATCH, URL])

    def serve(self, package: Path, *options: str | Path) -> Process:
        """Start the head."""
        return self._head.start([PROGRAM, "serve", package.resolve(), "--json", *options])

    def token(self) -> Path:
        """A file with the fleet's token."""
        file = self._lab.folder / f"token-{self._head.name}"
        file.touch(0o600)
        file.write_text(self.call("token"), "utf-8")
        return file

    def join(self, index: int, *options: str | Path) -> Process:
        """Start a node's agent on a host."""
        return self._lab.hosts[index].start([PROGRAM, "join", *options])

    def lend_measurements(self, index: int) -> None:
        """Have a host take over what the head's PC has measured, which is as fast.

        For tests of what is planned: PCs on one machine are measured while others work on the same processors.
        """
        shutil.copytree(self._head.home / _MEASUREMENTS, self._lab.hosts[index].home / _MEASUREMENTS)

    def ask(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        """The model's answer, greedily; see `edge-agent ask --json`."""
        answer: dict[str, Any] = json.loads(self.call("ask", prompt, "--max-tokens", str(max_tokens), "--json"))
        return answer

    def status(self) -> dict[str, Any]:
        """See `edge-agent status --json`."""
        status: dict[str, Any] = json.loads(self.call("status", "--json"))
        return status

    def sights(self) -> list[Sight]:
        """How the fleet looked from the beginning: one for every change."""
        whole = self._watch.stdout.rpartition("\n")[0]
        return [Sight(**json.loads(line)) for line in whole.splitlines()]

    def wait_for_nodes(self, names: Iterable[str], timeout: float, processes: Sequence[Process] = ()) -> Sight:
        """Wait until exactly these nodes are listed; see wait_until."""
        wanted = sorted(names)
        return self.wait_until(f"nodes {', '.join(wanted)}", lambda sight: sight.nodes == wanted, timeout, processes)

    def wait_until(
        self, what: str, reached: Callable[[Sight], bool], timeout: float, processes: Sequence[Process] = ()
    ) -> Sight:
        """Wait until the fleet is in a state, while the given processes run.

        Raises:
            LabError: it did not come about within `timeout` seconds, or a process ended.
        """
        end = time.monotonic() + timeout
        while True:
            late = time.monotonic() >= end
            over = next((process for process in processes if process.returncode is not None), None)
            last = next(iter(self.sights()[-1:]), None)
            if last and reached(last):
                return last
            if late or over:
                why = f"{over.command[1]} has ended" if over else f"not within {timeout:g} s"
                raise LabError("\n\n".join((f"{what}: {why}; at last {last}", *map(str, processes))))
            time.sleep(_POLL_SECONDS)

    def call(self, *words: str) -> str:
        """Run a command of edge-agent on the head's host and give what it prints.

        Raises:
            LabError: it failed.
        """
        done = self._head.run([PROGRAM, *words], timeout=180)
        if done.returncode:
            raise LabError(f"edge-agent {words[0]} failed: {done.stdout}{done.stderr}")
        return done.stdout
