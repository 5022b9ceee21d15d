"""Whether a PC that is much slower than the others is left out, and why."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from agent.bench.report import Report, holds
from lab_parts import throttle
from lab_parts.agents import Agents
from lab_parts.lab import Lab
from lab_parts.namespaces import LabError
from lab_parts.process import Process
from shards.progress import Progress

_SHARE = 0.1
_PATIENCE_SECONDS = 600.0
_POLL_SECONDS = 1.0


class SlowCheck:
    """A head serves on `pc0`; `pc1`, whose stages run a tenth of the time, joins.

    The model's layers must take longer than the turns in which a process can be held back, about a millisecond.
    """

    def __init__(self, lab: Lab, package: Path, progress: Progress) -> None:
        self._package, self._progress, self._agents = package, progress, Agents(lab)
        self.report = Report("lab slow", {"package": package.name, "share": _SHARE, **lab.settings})

    def run(self) -> Report:
        """See what is planned once `pc1` is measured."""
        agents = self._agents
        head = agents.serve(self._package, "--no-replicas", "--users", "1")
        agents.wait_until("the model runs", lambda sight: len(sight.chains) == 1, _PATIENCE_SECONDS, [head])
        node = agents.join(1, "--token-file", agents.token())
        self._progress("measuring a slow PC", 0, 1)
        plan = self._plan(head, node)
        self._progress("measuring a slow PC", 1, 1)
        names = plan["nodes"]
        left = {names[each["node"]]: each for each in plan["plan"]["left_out"]}
        reason = left["pc1"]["reason"] if "pc1" in left else "it is not left out"
        status = agents.status()
        layer = {node["name"]: node["milliseconds"]["layer"][0] for node in status["nodes"] if node["milliseconds"]}
        with_it = left["pc1"]["prediction_with"] if "pc1" in left else None
        self.report.results.append(
            {
                "layer on pc0, ms": layer["pc0"],
                "layer on pc1, ms": layer["pc1"],
                "tok/s without pc1": plan["plan"]["prediction"]["many_users"],
                "tok/s with pc1": with_it and with_it["many_users"],
            }
        )
        self.report.targets += [
            holds("the slow PC is left out, with the figures", "tok/s" in reason, reason),
            holds("the model stays where it was", agents.sights()[-1].chains == [["pc0"]], "one stage on pc0"),
        ]
        return self.report

    def _plan(self, head: Process, node: Process) -> dict[str, Any]:
        """The plan when both PCs are measured."""
        if node.pid is None:
            raise LabError(f"the agent has ended: {node}")
        command = [sys.executable, throttle.__file__, str(node.pid), str(_SHARE)]
        slow = subprocess.Popen(command)
        try:
            end = time.monotonic() + _PATIENCE_SECONDS
            while time.monotonic() < end:
                plan: dict[str, Any] = json.loads(self._agents.call("plan", "--json"))
                if len(plan["nodes"]) == 2 and not plan["unmeasured"]:
                    return plan
                time.sleep(_POLL_SECONDS)
            raise LabError(f"pc1 was not measured within {_PATIENCE_SECONDS:g} s\n\n{head}\n\n{node}")
        finally:
            slow.terminate()
            slow.wait()
