"""`bench prefill`: what prompts cost those who wait for them, and those who do not. Two stages with a core each.

A long prompt arrives while other answers are being decoded: how long these pause, and when its own first token comes,
against the same with the whole prompt in one step. And a prompt that begins as an earlier one did: its first token
against the earlier one's, and its answer (in exact mode) against that of a chain that keeps no prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from agent import paths
from agent.bench.arrivals import ClosedLoop
from agent.bench.load import Asked, Load, run_traffic
from agent.bench.newcomer import Arrived, arrive
from agent.bench.prompts import chat_prompts, long_prompt, shared_prompts
from agent.bench.report import Report, at_least, at_most, holds
from agent.bench.sides import Effort, in_turn
from pipeline.running import RunningModel, RunOptions
from shards import manifest as manifests
from shards.progress import Progress

EFFORT = Effort(users=(8,), rounds=4, new_tokens=32, starts=2)
QUICK = Effort(users=(8,), rounds=1, new_tokens=16)

LONG_TOKENS, SHARED_TOKENS = 900, 600
WANTED_SOONER, WANTED_SHARED = 1.6, 5.0

CHUNKS, WHOLE = "chunks", "one step"
COLD, SECOND = "first of its kind", "second"

_WHOLE_BUDGET = 1024
_MOST_TOKENS = 1024
"""Of an answer that is being decoded; it ends before."""
_EXACT_QUESTIONS = 2
_CORES = ((0,), (1,))


def run(package: Path, effort: Effort, progress: Progress) -> Report:
    """Run it; the first of `effort.users` is how many answers are being decoded.

    Raises:
        EdgeAgentError: a chain could not be loaded, or failed.
    """
    settings: dict[str, Any] = {
        "package": package.name,
        **effort.settings,
        "decoding_users": effort.users[0],
    }
    report = Report("prefill", settings)
    _long_prompt(report, package, effort, progress)
    _shared_beginning(report, package, effort, progress)
    _same_answers(report, package, effort, progress)
    return report


def _long_prompt(report: Report, package: Path, effort: Effort, progress: Progress) -> None:
    """A long prompt among answers, in chunks and in one step in turn."""
    users, context = effort.users[0], manifests.read(package).facts.context_length
    most_tokens = min(_MOST_TOKENS, context // 2)
    chunks = _options(kv_tokens=LONG_TOKENS + (users + 1) * (most_tokens + 256), prefix_cache=False)
    whole = chunks.model_copy(update={"token_budget": _WHOLE_BUDGET, "target_tbt_ms": None})
    found: dict[str, list[Arrived]] = {CHUNKS: [], WHOLE: []}
    for start in range(effort.starts):
        with (
            RunningModel.open(package, chunks, progress) as in_chunks,
            RunningModel.open(package, whole, progress) as in_one,
        ):
            facts, tokenizer = in_chunks.manifest.facts, in_chunks.tokenizer
            heads: dict[str, Asked] = {CHUNKS: in_chunks.head, WHOLE: in_one.head}
            decoding = chat_prompts(tokenizer, facts, users)
            newcomer = long_prompt(tokenizer, facts, LONG_TOKENS, 0)
            for done in range(effort.rounds + 1):  # the first one warms up
                progress(f"a long prompt: start {start + 1} of {effort.starts}", done, effort.rounds + 1)
                for side in in_turn(heads, start + done):
                    arrived = arrive(heads[side], decoding, newcomer, most_tokens)
                    if done:
                        found[side].append(arrived)
                        report.runs.append({"what": f"{LONG_TOKENS} tokens", "side": side, **_figures(arrived)})
            progress("a long prompt", 1, 1)
    report.settings["target_tbt_ms"] = chunks.target_tbt_ms
    ours, control = (_medians(found[side]) for side in (CHUNKS, WHOLE))
    for name, figure in ours.items():
        what = f"{LONG_TOKENS} tokens among {users} answers: {name.replace('_', ' ')}"
        report.results.append(_row(what, CHUNKS, figure, WHOLE, control[name]))
    sooner = median(a.first_token / b.first_token for a, b in zip(found[WHOLE], found[CHUNKS], strict=True))
    what = f"between tokens of {users} answers while {LONG_TOKENS} prompt tokens are worked on, ms, p99"
    assert chunks.target_tbt_ms is not None
    report.targets.append(at_most(what, ours["between_tokens_p99_ms"], chunks.target_tbt_ms))
    what = f"first token of the {LONG_TOKENS}, in one step / in chunks"
    report.targets.append(at_least(what, sooner, WANTED_SOONER))


def _shared_beginning(report: Report, package: Path, effort: Effort, progress: Progress) -> None:
    """Two questions with one system prompt, another one in each round."""
    times: dict[str, list[float]] = {COLD: [], SECOND: []}
    for start in range(effort.starts):
        with RunningModel.open(package, _options(), progress) as model:
            for done in range(effort.rounds + 1):  # the first one warms up
                progress(f"a shared beginning: start {start + 1} of {effort.starts}", done, effort.rounds + 1)
                both = shared_prompts(model.tokenizer, model.manifest.facts, SHARED_TOKENS, done)
                answers = [_ask(model, prompt, effort.new_tokens) for prompt in both]
                if not done:
                    continue
                for side, (load, cached) in zip(times, answers, strict=True):
                    times[side].append(1e3 * load.first_token_seconds[0])
                    run = {"side": side, "first_token_ms": round(times[side][-1], 2), "cached_tokens": cached}
                    report.runs.append({"what": f"{SHARED_TOKENS} shared tokens", **run})
            progress("a shared beginning", 1, 1)
    what = f"{SHARED_TOKENS} shared tokens: first token ms"
    report.results.append(_row(what, SECOND, median(times[SECOND]), COLD, median(times[COLD])))
    what = f"first token after {SHARED_TOKENS} shared tokens, first of its kind / second"
    sooner = median(cold / second for cold, second in zip(times[COLD], times[SECOND], strict=True))
    report.targets.append(at_least(what, sooner, WANTED_SHARED))


def _same_answers(report: Report, package: Path, effort: Effort, progress: Progress) -> None:
    """What is answered from kept prompts is what is answered without, in exact mode."""
    same = 0
    with (
        RunningModel.open(package, _options(mode="exact"), progress) as keeps,
        RunningModel.open(package, _options(mode="exact", prefix_cache=False), progress) as forgets,
    ):
        for number in range(_EXACT_QUESTIONS):
            progress("the same answers", number, _EXACT_QUESTIONS)
            first, second = shared_prompts(keeps.tokenizer, keeps.manifest.facts, SHARED_TOKENS, number)
            _ask(keeps, first, effort.new_tokens)
            warm, cached = _ask(keeps, second, effort.new_tokens)
            cold, _ = _ask(forgets, second, effort.new_tokens)
            same += cached > 0 and warm.tokens == cold.tokens
        progress("the same answers", _EXACT_QUESTIONS, _EXACT_QUESTIONS)
    got = f"{same} of {_EXACT_QUESTIONS} answers"
    report.targets.append(holds("exact mode: the same answer as without kept prompts", same == _EXACT_QUESTIONS, got))


def _ask(model: RunningModel, prompt: tuple[int, ...], new_tokens: int) -> tuple[Load, int]:
    """One question of one user, and how many tokens of the prompt came from the prefix cache."""
    before = model.head.snapshot().scheduler.cached_tokens
    load = run_traffic(model.head, ClosedLoop(1, questions=1), [prompt], new_tokens)
    return load, model.head.snapshot().scheduler.cached_tokens - before


def _figures(arrived: Arrived) -> dict[str, float]:
    """The newcomer's first token; then the others' pauses between tokens while it waits for that, and before."""
    return {
        "first_token_ms": round(1e3 * arrived.first_token, 1),
        "between_tokens_p50_ms": _percentile(arrived.during, 50),
        "between_tokens_p99_ms": _percentile(arrived.during, 99),
        "between_tokens_before_p50_ms": _percentile(arrived.before, 50),
        "between_tokens_before_p99_ms": _percentile(arrived.before, 99),
    }


def _percentile(seconds: Sequence[float], percent: float) -> float:
    return round(1e3 * float(np.percentile(seconds, percent)), 1)


def _medians(all_: Sequence[Arrived]) -> dict[str, float]:
    figures = [_figures(arrived) for arrived in all_]
    return {name: median(one[name] for one in figures) for name in figures[0]}


def _row(what: str, ours: str, got: float, control: str, other: float) -> dict[str, Any]:
    return {"what": what, "ours": f"{ours}: {got:.1f}", "control": f"{control}: {other:.1f}", "ratio": other / got}


def _options(**given: Any) -> RunOptions:
    return RunOptions(stages=len(_CORES), threads=1, cores=_CORES, cache=paths.tuning_folder(), **given)
