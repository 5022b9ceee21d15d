"""`bench simulation`: what the simulator says of two stages with a core each, against what they do.

A load is simulated with what its own steps took: each stage's mean step time by rows and its scatter, and what
steps spent on the way and in the head. Scheduler, settings, lengths and times of arrival are the same, so what is
compared is how steps queue, overlap and fill the chain. Users ask again when they are answered, and then others at a
rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from agent import paths
from agent.bench.arrivals import ClosedLoop, Poisson, Traffic
from agent.bench.load import Load, run_traffic
from agent.bench.prompts import chat_prompts
from agent.bench.recorded_steps import RecordedStep, RecordingScheduler, leg_ms, stage_models
from agent.bench.report import Report, Target
from agent.bench.sides import Effort
from pipeline.chain import Chain
from pipeline.head import Head
from pipeline.layout import RunOptions, lay_out
from pipeline.running import scheduler_config
from pipeline.scheduler_config import SchedulerConfig
from pipeline.simulation import loads
from pipeline.simulation.link_model import LinkModel
from pipeline.simulation.measures import Measures
from pipeline.simulation.report import simulate
from pipeline.simulation.system import StageEntry, System
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests
from shards.progress import Progress

EFFORT = Effort(users=(1, 2, 4, 8, 16), rounds=2, new_tokens=96, starts=2)
QUICK = Effort(users=(1, 4), rounds=1, new_tokens=32)

OPTIONS = RunOptions(stages=2, threads=1, cores=((0,), (1,)), prefix_cache=False)

WITHIN = 0.1
"""Of what is measured."""

POISSON = "Poisson"
"""Stands in for the number of users."""
_UTILISATION = 0.6
"""Of what the chain gave the most users: the rate of independent users."""

_QUESTIONS, _FEWEST_QUESTIONS = 2, 6
"""Of each user, and of independent users together at least."""

_LATER_MS = 1e7
"""A simulated load begins long after the one before."""


@dataclass(slots=True)
class _Running:
    """Two stages at work."""

    config: SchedulerConfig
    scheduler: RecordingScheduler
    head: Head
    prompts: list[tuple[int, ...]]


@dataclass(slots=True)
class _Ran:
    """The rounds of one load after one start."""

    loads: list[Load] = field(default_factory=list)
    steps: list[RecordedStep] = field(default_factory=list)
    head_ms: list[float] = field(default_factory=list)


def run(package: Path, effort: Effort, progress: Progress, options: RunOptions = OPTIONS) -> Report:
    """Run it.

    Raises:
        EdgeAgentError: a stage could not be loaded, or failed.
    """
    settings: dict[str, Any] = {"package": package.name, **effort.settings}
    report = Report("simulation", settings)
    found: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = {}
    for start in range(effort.starts):
        with _open(package, options, max(effort.users), progress) as running:
            ran = _measure(running, effort, f"simulation: start {start + 1} of {effort.starts}", progress)
        for name, rounds in ran.items():
            system = _model(running.config, rounds)
            model = system.model_dump(include={"stages", "link", "head_ms"}, exclude_defaults=True)
            for load in rounds.loads:
                measured, simulated = _figures(load), _simulated(system, load, name, running.prompts, effort)
                found.setdefault(name, []).append((measured, simulated))
                report.runs.append({"users": name, "measured": measured, "simulated": simulated, "model": model})
    for name, pairs in found.items():
        row: dict[str, Any] = {"users": name}
        for figure in pairs[0][0]:
            row[figure] = median(measured[figure] for measured, _ in pairs)
            row[f"simulated {figure}"] = median(simulated[figure] for _, simulated in pairs)
        ratio = median(simulated["tok/s"] / measured["tok/s"] for measured, simulated in pairs)
        report.results.append(row)
        what = f"simulated / measured tok/s, {name}{' users' * (name != POISSON)}"
        wanted = f"{1 - WITHIN:g} to {1 + WITHIN:g}"
        report.targets.append(Target(what, wanted, round(ratio, 3), abs(ratio - 1) <= WITHIN))
    return report


def _measure(running: _Running, effort: Effort, what: str, progress: Progress) -> dict[str, _Ran]:
    """Load the stages with each number of users; the first round of each only warms up."""
    found, total = dict[str, _Ran](), (len(effort.users) + 1) * (effort.rounds + 1)
    traffic: dict[str, Traffic] = {str(n): ClosedLoop(n, questions=_QUESTIONS * n) for n in effort.users}
    best = 0.0
    for name in (*traffic, POISSON):
        if name == POISSON:
            questions = max(_FEWEST_QUESTIONS, _QUESTIONS * max(effort.users))
            traffic[name] = Poisson(_UTILISATION * best / effort.new_tokens, questions)
        for round_number in range(effort.rounds + 1):
            done = list(traffic).index(name) * (effort.rounds + 1) + round_number
            progress(f"{what}, {name}{' users' * (name != POISSON)}", done, total)
            load = run_traffic(running.head, traffic[name], running.prompts, effort.new_tokens)
            steps = running.scheduler.take()
            best = max(best, load.tokens_per_second)
            if round_number:
                ran = found.setdefault(name, _Ran())
                ran.loads.append(load)
                ran.steps += steps
                ran.head_ms.append(1e-3 * running.head.snapshot().times.head)
    progress(what, total, total)
    return found


def _model(config: SchedulerConfig, ran: _Ran) -> System:
    """Two stages, links and a head that take what was recorded."""
    models = stage_models(ran.steps)
    return System(
        scheduler=asdict(config),
        stages=tuple(StageEntry(**model.model_dump()) for model in models),
        link=LinkModel(latency_ms=leg_ms(ran.steps, models)),
        head_ms=median(ran.head_ms),
    )


def _simulated(
    system: System, load: Load, name: str, prompts: Sequence[tuple[int, ...]], effort: Effort
) -> dict[str, float]:
    """The same questions, simulated; asked once before, as they were, so that the scheduler knows its chain."""
    lengths = {"values": [len(prompt) for prompt in prompts], "in_turn": True}
    same: dict[str, Any] = {"prompt_tokens": lengths, "new_tokens": effort.new_tokens}
    if name == POISSON:
        times = [1e3 * answer.asked for answer in load.answers]
        same |= {"users": len(times), "arrivals": "trace", "at_ms": times}
    else:
        same |= {"users": int(name), "arrivals": "closed", "count": len(load.answers)}
    measured = {**same, "name": "measured", "start_ms": _LATER_MS}
    outcome = simulate(system, loads.Load.model_validate({**same, "beside": [measured]}))
    measures = Measures.of([times for times in outcome.requests.values() if times.cohort == "measured"])
    return {
        "tok/s": measures.phase,
        "first ms": measures.first_p50_ms,
        "first p95": measures.first_p95_ms,
        "between ms": measures.between_p50_ms or 0.0,
        "between p99": measures.between_p99_ms or 0.0,
    }


def _figures(load: Load) -> dict[str, float]:
    first, between = load.first_token_seconds, load.between_token_seconds
    return {
        "tok/s": load.tokens_per_second,
        "first ms": 1e3 * median(first),
        "first p95": 1e3 * float(np.percentile(first, 95)),
        "between ms": 1e3 * median(between),
        "between p99": 1e3 * float(np.percentile(between, 99)),
    }


@contextmanager
def _open(package: Path, options: RunOptions, users: int, progress: Progress) -> Iterator[_Running]:
    """The stages, and a head whose scheduler keeps records."""
    manifest, cache = manifests.read(package), paths.tuning_folder()
    layout = lay_out(package, manifest, options, cache, progress)
    with Chain.start(
        layout.stages,
        max_rows=options.token_budget,
        max_sequences=options.max_sequences,
        cache=cache,
        progress=progress,
    ) as chain:
        config = scheduler_config(chain, manifest.facts.context_length, options, layout.times)
        scheduler = RecordingScheduler(config)
        head = Head(chain, scheduler)
        try:
            prompts = chat_prompts(Tokenizer.load(package), manifest.facts, users)
            yield _Running(config, scheduler, head, prompts)
        finally:
            head.close()
