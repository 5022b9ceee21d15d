"""Pictures of what `bench concurrency` found: each figure against the number of users, a line for each side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent import plots
from agent.bench.concurrency import DECODING, POISSON
from agent.bench.report import Report
from agent.bench.sides import RATE
from agent.plots import Panel

_USERS = "users"
_PICTURES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "throughput.png": {
        RATE: ("over all the time, prompts and all", "tokens/s"),
        DECODING: ("while all users decode", "tokens/s"),
    },
    "first_token.png": {
        "first_token_p50_ms": ("question to first token, p50", "ms"),
        "first_token_p95_ms": ("question to first token, p95", "ms"),
    },
    "between_tokens.png": {
        "between_tokens_p50_ms": ("between two tokens, p50", "ms"),
        "between_tokens_p95_ms": ("between two tokens, p95", "ms"),
        "between_tokens_p99_ms": ("between two tokens, p99", "ms"),
    },
}
"""Files, and the figures of their panels."""


def prepare(folder: Path) -> None:
    """Make the folder.

    Raises:
        ConfigurationError: nothing can be drawn here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in _PICTURES:
        plots.check(folder / name)


def draw(report: Report, folder: Path) -> None:
    """Write the pictures."""
    rows = [row for row in report.results if row["users"] != POISSON]
    title = f"{report.settings['package']}, two cores"
    for name, figures in _PICTURES.items():
        panels = [Panel(text, _USERS, unit, _lines(rows, figure)) for figure, (text, unit) in figures.items()]
        plots.panels(folder / name, title, panels, log_x=True)


def _lines(rows: Sequence[Mapping[str, Any]], figure: str) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        points = lines.setdefault(row["side"], [])
        if row[figure] is not None:
            points.append((row["users"], row[figure]))
    return lines
