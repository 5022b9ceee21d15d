"""Comparing sides within one run: they take turns, and medians and ratios are taken over the rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from agent.bench.report import Report
from shards.progress import Progress

Measure = Callable[[int], float]
"""Runs a side once with a number of users and returns its tokens per second."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    users: tuple[int, ...]
    rounds: int
    new_tokens: int


def take_turns(
    report: Report, sides: Mapping[str, Measure], effort: Effort, progress: Progress
) -> dict[int, dict[str, float]]:
    """Measure each side at each number of users, `rounds` times in turn; the first round only warms up.

    Each run goes into `report.runs`. Returns, for each number of users, each side's median tokens per second.
    """
    medians: dict[int, dict[str, float]] = {}
    total = len(effort.users) * (effort.rounds + 1)
    for done, users in enumerate(effort.users):
        got: dict[str, list[float]] = {name: [] for name in sides}
        for round_number in range(effort.rounds + 1):
            progress(f"{report.bench}: {users} users", done * (effort.rounds + 1) + round_number, total)
            # every other round the other way about, so that none always follows the same one
            for name in list(sides)[:: 1 if round_number % 2 else -1]:
                rate = sides[name](users)
                if round_number:
                    got[name].append(rate)
                    report.runs.append({"users": users, "side": name, "tokens_per_second": round(rate, 2)})
        medians[users] = {name: median(rates) for name, rates in got.items()}
    progress(report.bench, total, total)
    return medians


def ratio(report: Report, users: int, ours: str, theirs: str) -> float:
    """The median over the rounds of one side's rate over another's of the same round."""
    pairs = zip(_rates(report.runs, users, ours), _rates(report.runs, users, theirs), strict=True)
    return median(a / b for a, b in pairs)


def _rates(runs: Sequence[dict[str, Any]], users: int, side: str) -> list[float]:
    return [run["tokens_per_second"] for run in runs if run["users"] == users and run["side"] == side]
