"""`bench soak`: a server of two stages under a long load from clients that come and go as they like, then at rest.

When nobody asks any more it must hold what it held after the warm-up, which is a part of the same load: sockets,
files, threads, processes, KV blocks, Python objects and memory. And every request must have had its one end.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import psutil

from agent.bench.report import Report, Target, at_most, holds
from agent.bench.soak_load import Crowd, asks
from agent.bench.soaked_server import Rest, SoakedServer
from pipeline.running import RunOptions
from shards.errors import StageError
from shards.progress import Progress

MEMORY_MB = 12.0
"""What a process may gain: Python and the C library keep what they free, to use it again, and take more from Linux in
pages of 2 MB; a step of a size that the warm-up did not come to is one or two. A forgotten prompt is some 6 KB, which
2,000 times is as much."""
OBJECTS = 1000
"""What the head may gain of Python's objects: its averages fill. A leak of one a request makes twice as many."""

_KV_TOKENS = 1024
"""Less than the users want at once, so that requests wait, preempt one another and push prefixes out."""
_TOKEN_BUDGET = 24
"""OpenVINO keeps kernels for each number of rows that it has seen in a step, some 1.5 MB of them. Where the numbers are
few, the warm-up comes to all of them, and what is gained afterwards is something else."""
_STAGES, _PARTS = 2, 4


@dataclass(frozen=True, slots=True)
class SoakEffort:
    """How much is asked."""

    requests: int = 2000
    """After the warm-up."""
    warm_up: int = 500
    """Requests of the same kinds before anything is compared."""
    users: int = 24
    """At the same time."""


EFFORT = SoakEffort()
QUICK = SoakEffort(requests=200, warm_up=200)


def run(package: Path, effort: SoakEffort, progress: Progress) -> Report:
    """Run it.

    Raises:
        StageError: the server could not be started, or has ended.
    """
    settings = {"package": package.name, "kv_tokens": _KV_TOKENS, "token_budget": _TOKEN_BUDGET, **asdict(effort)}
    report = Report("soak", settings)
    options = RunOptions(stages=_STAGES, threads=1, kv_tokens=_KV_TOKENS, token_budget=_TOKEN_BUDGET, tune=False)
    server = SoakedServer(package, options)
    try:
        _soak(server, effort, report, progress)
    except (httpx.HTTPError, psutil.NoSuchProcess) as error:
        raise StageError(f"the server, or a stage of it, is not there any more ({error!r})", where="soak") from error
    finally:
        left = server.close()
    report.targets.append(at_most("processes left when the server has ended", left, 0))
    return report


def _soak(server: SoakedServer, effort: SoakEffort, report: Report, progress: Progress) -> None:
    wanted = asks(server.vocabulary)
    warm_up, part = effort.warm_up, effort.requests // _PARTS
    total = warm_up + _PARTS * part

    def work(crowd: Crowd, count: int, before: int) -> Rest:
        crowd.work(list(islice(wanted, count)), lambda done: progress("soak", before + done, total))
        rest = server.rest()
        memory = {f"{name} MB": held.memory / 1e6 for name, held in rest.held.items()}
        report.runs.append({"requests": before + count, "objects": rest.objects, **memory})
        return rest

    server.make_threads()
    first = last = work(Crowd(server.url, effort.users), warm_up, 0)
    crowd = Crowd(server.url, effort.users)
    for number in range(_PARTS):
        last = work(crowd, part, warm_up + number * part)
    report.settings["ends"] = dict(crowd.ends)
    report.settings["faults"] = crowd.faults[:20]
    report.settings["scheduler"] = last.scheduler
    report.results += [_row(name, first, last) for name in server.pids]
    report.targets += [*_ends(crowd, first, last), *_held(first, last)]
    whole = server.ask([server.vocabulary - 1] * server.largest_prompt)
    report.targets.append(holds("a prompt as large as the KV cache is answered", whole in ("length", "stop"), whole))


def _ends(crowd: Crowd, first: Rest, last: Rest) -> list[Target]:
    ended = last.answers - first.answers
    least, most = crowd.asked, crowd.asked + crowd.unsure
    return [
        at_most("requests that did not have exactly one end", len(crowd.faults), 0),
        holds("answers that ended at the server", least <= ended <= most, f"{ended} of {least} to {most} asked for"),
        at_most("requests the server still knows", last.requests, 0),
        at_most("KV tokens in use", last.scheduler["kv_used"], 0),
        at_most("steps in flight", last.scheduler["in_flight"], 0),
    ]


def _held(first: Rest, last: Rest) -> list[Target]:
    targets: list[Target] = []
    for name, before in first.held.items():
        after = last.held[name]
        for what in ("threads", "sockets", "files", "children"):
            targets.append(at_most(f"{name}: {what}", getattr(after, what), getattr(before, what)))
        targets.append(at_most(f"{name}: MB gained", (after.memory - before.memory) / 1e6, MEMORY_MB))
    targets.append(at_most("head: Python objects gained", last.objects - first.objects, OBJECTS))
    return targets


def _row(name: str, first: Rest, last: Rest) -> dict[str, Any]:
    before, after = first.held[name], last.held[name]
    return {
        "process": name,
        **{what: f"{getattr(before, what)} -> {getattr(after, what)}" for what in ("threads", "sockets", "files")},
        "MB before": before.memory / 1e6,
        "MB after": after.memory / 1e6,
    }
