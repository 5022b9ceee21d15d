"""`bench parity`: one stage against the engines it must not be slower than.

In fast mode against openvino_genai's continuous batching, with one inference thread each; in exact mode against the
unsplit graph, token by token. Every prompt is asked fresh: both sides have their prefix caches off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent import paths
from agent.bench.load import run_load
from agent.bench.prompts import chat_prompts
from agent.bench.report import Report, at_least, holds
from agent.bench.rival import Rival
from agent.bench.sides import Effort, Measure, compare, ratio
from pipeline.running import RunningModel, RunOptions
from shards.progress import Progress
from shards.runtime import Mode

EFFORT = Effort(users=(1, 8, 16), rounds=2, new_tokens=96, starts=4)
QUICK = Effort(users=(1, 8), rounds=2, new_tokens=48)

WANTED = 0.97
"""Of GenAI's tokens per second."""

_EXACT_PROMPTS = 4


def run(package: Path, effort: Effort, progress: Progress) -> Report:
    """Run it.

    Raises:
        EdgeAgentError: a side could not be loaded, or failed.
    """
    settings: dict[str, Any] = {
        "package": package.name,
        "inference_threads": 1,
        **effort.settings,
    }
    report = Report("parity", settings)

    @contextmanager
    def start() -> Iterator[Mapping[str, Measure]]:
        with (
            RunningModel.open(package, _options("fast"), progress) as ours,
            Rival("genai", package) as genai,
        ):
            prompts = chat_prompts(ours.tokenizer, ours.manifest.facts, max(effort.users))
            settings["properties"] = [facts.properties for facts in ours.chain.facts]
            yield {
                "one stage": lambda users: run_load([ours.head], prompts[:users], effort.new_tokens).tokens_per_second,
                "genai": lambda users: users * effort.new_tokens / genai.run(prompts[:users], effort.new_tokens)[0],
            }

    medians = compare(report, start, effort, progress)
    for users, rates in medians.items():
        got = ratio(report, users, "one stage", "genai")
        report.results.append({"users": users, **rates, "ratio": got})
        report.targets.append(at_least(f"one stage / GenAI, tok/s, {users} users, one thread", got, WANTED))
    _exact(report, package, effort, progress)
    return report


def _exact(report: Report, package: Path, effort: Effort, progress: Progress) -> None:
    """One stage against the unsplit graph in exact mode: the same tokens, and how fast."""
    different: list[int] = []

    @contextmanager
    def start() -> Iterator[Mapping[str, Measure]]:
        with (
            RunningModel.open(package, _options("exact"), progress) as ours,
            Rival("unsplit", package) as unsplit,
        ):
            prompts = chat_prompts(ours.tokenizer, ours.manifest.facts, _EXACT_PROMPTS)
            for number, prompt in enumerate(prompts):
                progress("exact tokens", number, len(prompts))
                answer = run_load([ours.head], [prompt], effort.new_tokens).tokens[0]
                if list(answer) != unsplit.run([prompt], effort.new_tokens)[1][0]:
                    different.append(number)
            progress("exact tokens", len(prompts), len(prompts))
            yield {
                "one stage, exact": lambda users: (
                    run_load([ours.head], prompts[:users], effort.new_tokens).tokens_per_second
                ),
                "unsplit, exact": lambda users: (
                    users * effort.new_tokens / unsplit.run(prompts[:users], effort.new_tokens)[0]
                ),
            }

    rates = compare(report, start, replace(effort, users=(1,), starts=1), progress)[1]
    got = ratio(report, 1, "one stage, exact", "unsplit, exact")
    report.results.append({"users": "1, exact", **dict(zip(("one stage", "unsplit"), rates.values(), strict=True))})
    same = f"{_EXACT_PROMPTS - len(different)} of {_EXACT_PROMPTS} answers"
    report.targets.append(holds("exact mode: the unsplit graph's tokens", not different, same))
    report.targets.append(at_least("one stage / unsplit graph, tok/s, exact mode, 1 user", got, WANTED))


def _options(mode: Mode) -> RunOptions:
    return RunOptions(stages=1, mode=mode, threads=1, prefix_cache=False, cache=paths.tuning_folder())
