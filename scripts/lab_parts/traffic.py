"""Whether weights that are fetched slow tokens, measured on links of a lab."""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from bisect import bisect
from pathlib import Path

from agent.bench.report import Report, at_least
from lab_parts.agents import URL, Agents, Sight
from lab_parts.lab import Lab
from lab_parts.namespaces import LabError
from lab_parts.process import Process
from shards.progress import Progress

_STREAM = Path(__file__).with_name("stream.py")
_PACKAGES = Path(".cache", "edge-agent", "fleet")
_FETCHING = "fetching"
_LEAST = 0.9
_PATIENCE_SECONDS = 180.0
_BESIDE_SECONDS = 6.0
"""Of undisturbed tokens, before a node joins."""


class TrafficCheck:
    """A chain over `pc0` and `pc1` answers without a pause, while `pc2` joins and fetches, again and again."""

    def __init__(self, lab: Lab, package: Path, progress: Progress) -> None:
        self._lab, self._package, self._progress, self._agents = lab, package, progress, Agents(lab)
        self.report = Report("lab traffic", {"package": package.name, **lab.settings})

    def run(self, rounds: int) -> Report:
        """Compare the tokens a second of each round's download with those of the seconds before."""
        self.report.settings["rounds"] = rounds
        agents = self._agents
        token = agents.token()
        head = agents.serve(self._package, "--no-replicas", "--stages", "2", "--users", "1")
        first = agents.join(1, "--token-file", token)
        agents.wait_until("the model runs", lambda sight: len(sight.chains) == 1, _PATIENCE_SECONDS, [head, first])
        agents.lend_measurements(2)  # it shall fetch, not compute
        stream = self._lab.hosts[0].start([sys.executable, "-I", _STREAM, URL])
        for number in range(rounds):
            self._progress("downloads beside tokens", number, rounds)
            self._round(token, stream, [head, first, stream])
        self._progress("downloads beside tokens", rounds, rounds)
        ratio = statistics.median(run["ratio"] for run in self.report.runs)
        self.report.results.append({"tokens/s beside a download, of those without": ratio})
        self.report.targets.append(at_least("tokens/s beside a download, of those without", ratio, _LEAST))
        return self.report

    def _round(self, token: Path, stream: Process, processes: list[Process]) -> None:
        agents = self._agents
        shutil.rmtree(self._lab.hosts[2].home / _PACKAGES, ignore_errors=True)
        time.sleep(_BESIDE_SECONDS)
        began = time.monotonic()
        node = agents.join(2, "--token-file", token)
        start = agents.wait_until("pc2 fetches", _fetches, _PATIENCE_SECONDS, [*processes, node]).at
        end = agents.wait_until("pc2 has it", lambda s: not _fetches(s), _PATIENCE_SECONDS, [*processes, node]).at
        times = [float(line) for line in stream.stdout.splitlines()[:-1]]
        alone = _rate(times, began - _BESIDE_SECONDS, began)
        beside = _rate(times, start, end)
        self.report.runs.append(
            {"seconds": end - start, "tokens/s": alone, "tokens/s beside it": beside, "ratio": beside / alone}
        )
        node.interrupt()
        node.wait()
        agents.wait_for_nodes(["pc0", "pc1"], _PATIENCE_SECONDS, processes)


def _fetches(sight: Sight) -> bool:
    return sight.work.get("pc2", "").startswith(_FETCHING)


def _rate(times: list[float], start: float, end: float) -> float:
    count = bisect(times, end) - bisect(times, start)
    if not count:
        raise LabError(f"no tokens came within {end - start:.1f} s")
    return count / (end - start)
