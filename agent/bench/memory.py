"""`bench memory`: what stage processes hold, by their resident size, against what their layers weigh.

A process has a size of its own (Python, OpenVINO, kernels), which a stage of one layer shows. What larger stages have
beyond it must grow as the bytes of their weights do: a process that held more than its own layers would not.
"""

from __future__ import annotations

from pathlib import Path

import psutil

from agent.bench.load import run_load
from agent.bench.report import Report, at_most
from agent.bench.sides import Effort
from pipeline.running import RunningModel, RunOptions
from shards import manifest as manifests
from shards.manifest import Manifest
from shards.progress import Progress

EFFORT = Effort(users=(1,), rounds=3, new_tokens=8)
QUICK = Effort(users=(1,), rounds=1, new_tokens=8)

SLACK = 0.1
"""Of the whole model: how much more than its share a stage may hold."""

_KV_TOKENS = 256
_PROMPT, _NEW_TOKENS = tuple(range(32)), 8


def run(package: Path, effort: Effort, progress: Progress) -> Report:
    """Run it; of `effort` only the rounds count, and the smallest size of each stage is taken.

    Raises:
        EdgeAgentError: a stage could not be loaded.
    """
    manifest = manifests.read(package)
    depth = manifest.facts.layers
    ends = {"one layer": 1, "a third": max(2, depth // 3), "all": depth}
    report = Report("memory", {"package": package.name, "layers": depth, "rounds": effort.rounds})
    resident: dict[str, list[int]] = {name: [] for name in ends}
    total = effort.rounds * len(ends)
    for done in range(total):
        name = list(ends)[done % len(ends)]
        progress(f"memory: {name}", done, total)
        resident[name].append(_resident(package, ends[name], depth, progress))
        report.runs.append({"layers": ends[name], "resident_bytes": resident[name][-1]})
    progress("memory", total, total)
    held = {name: min(sizes) for name, sizes in resident.items()}
    weights = {name: _weights(manifest, end) for name, end in ends.items()}
    base, whole = held["one layer"], held["all"] - held["one layer"]
    for name, end in ends.items():
        report.results.append(
            {"layers": f"0-{end - 1}", "weights MB": weights[name] / 1e6, "resident MB": held[name] / 1e6}
        )
    share = (weights["a third"] - weights["one layer"]) / (weights["all"] - weights["one layer"])
    what = f"resident beyond one layer's process, layers 0-{ends['a third'] - 1} / all"
    report.targets.append(at_most(what, (held["a third"] - base) / whole, share + SLACK))
    return report


def _weights(manifest: Manifest, end: int) -> int:
    return sum(stop - start for start, stop in manifest.spans.of_stage(0, end))


def _resident(package: Path, end: int, depth: int, progress: Progress) -> int:
    """Bytes that the process with the first `end` layers holds, after it has answered something."""
    split = (end, depth - end) if end < depth else (depth,)
    options = RunOptions(split=split, kv_tokens=_KV_TOKENS, threads=1, tune=False)
    with RunningModel.open(package, options, progress) as model:
        run_load([model.head], [_PROMPT], _NEW_TOKENS)
        return int(psutil.Process(model.chain.stages[0].pid).memory_info().rss)
