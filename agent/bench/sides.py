"""Comparing sides within one run: they take turns, and medians and ratios are taken over all rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from typing import Any

from agent.bench.report import Report
from shards.progress import Progress

RATE = "tokens_per_second"

Measure = Callable[[int], float]
"""Runs a side once with a number of users and returns its tokens per second."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    users: tuple[int, ...]
    rounds: int
    """Counted rounds of each start."""
    new_tokens: int
    starts: int = 1
    """Where a process has its memory alone makes some 3 % of its speed, for as long as it lives."""

    @property
    def settings(self) -> dict[str, Any]:
        """What a report says of it; the numbers of users are in its results."""
        return {"starts": self.starts, "rounds": self.rounds, "new_tokens": self.new_tokens}


def compare(
    report: Report,
    start: Callable[[], AbstractContextManager[Mapping[str, Measure]]],
    effort: Effort,
    progress: Progress,
) -> dict[int, dict[str, float]]:
    """Start the sides, measure each at each number of users in turn, end them, and all that `effort.starts` times.

    The first round after a start only warms up. Each run goes into `report.runs`. Returns, for each number of users,
    each side's median tokens per second.
    """
    first = len(report.runs)
    for number in range(effort.starts):
        with start() as sides:
            _take_turns(report, sides, effort, f"{report.bench}: start {number + 1} of {effort.starts}", progress)
    runs = report.runs[first:]
    return {users: {name: median(_rates(runs, users, name)) for name in sides} for users in effort.users}


def _take_turns(report: Report, sides: Mapping[str, Measure], effort: Effort, what: str, progress: Progress) -> None:
    total = len(effort.users) * (effort.rounds + 1)
    for done, users in enumerate(effort.users):
        for round_number in range(effort.rounds + 1):
            progress(f"{what}, {users} users", done * (effort.rounds + 1) + round_number, total)
            for name in in_turn(sides, round_number):
                rate = sides[name](users)
                if round_number:
                    report.runs.append({"users": users, "side": name, RATE: round(rate, 2)})
    progress(what, total, total)


def in_turn(sides: Iterable[str], round_number: int) -> list[str]:
    """The sides in the order of a round: every other one the other way about, so that none always follows the same."""
    return list(sides)[:: 1 if round_number % 2 else -1]


def ratio(report: Report, users: int, ours: str, theirs: str, rate: str = RATE) -> float:
    """The median over the rounds of one side's rate over another's of the same round."""
    pairs = zip(_rates(report.runs, users, ours, rate), _rates(report.runs, users, theirs, rate), strict=True)
    return median(a / b for a, b in pairs)


def _rates(runs: Sequence[dict[str, Any]], users: int, side: str, rate: str = RATE) -> list[float]:
    return [run[rate] for run in runs if run["users"] == users and run["side"] == side]
