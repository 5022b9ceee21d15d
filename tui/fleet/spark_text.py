"""Curves of the last minutes, a character a column. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from tui import amounts
from tui.client.history import History
from tui.client.plain import one_line
from tui.client.state import Fleet

_BARS = "▁▂▃▄▅▆▇█"


def curve(values: Sequence[float], width: int, top: float | None = None) -> str:
    """The newest values at the right end, one a cell; cells without a value are blank, and zero is the lowest bar.

    Args:
        values: Newest last.
        width: Cells.
        top: What fills a cell; None: the largest of the values that show.
    """
    if width <= 0:
        return ""
    shown = [max(value, 0.0) if math.isfinite(value) else 0.0 for value in _last(values, width)]
    top = max(shown, default=0.0) if top is None else top
    highest = len(_BARS) - 1
    # what is more than nothing is seen to be
    bars = "".join(_BARS[math.ceil(min(value / top, 1.0) * highest) if top > 0 else 0] for value in shown)
    return bars.rjust(width)


@dataclass(frozen=True, slots=True)
class Curve:
    """A row: what it is, the values, and the newest one in words."""

    label: str
    values: Sequence[float]
    words: str
    top: float | None = None


def curves(fleet: Fleet | None, history: History | None) -> list[Curve]:
    """Those of the whole fleet, then the use of each node's stages."""
    if history is None:
        return []
    rows = [
        Curve("tok/s", history.tokens_per_second, amounts.tokens_per_second(_newest(history.tokens_per_second))),
        Curve("queue", history.queue, amounts.count(_newest(history.queue))),
        Curve("running", history.running, amounts.count(_newest(history.running))),
    ]
    if fleet is not None:
        for key in dict.fromkeys(stage.node for chain in fleet.chains for stage in chain.stages):
            if values := history.stage_use.get(key):
                name = "" if fleet.fleet is None else f" {one_line(fleet.names.get(key, key[:8]))}"
                rows.append(Curve(f"use{name}", values, amounts.percent(values[-1]), top=1.0))
    return rows


def _newest(values: Sequence[float]) -> float | None:
    return values[-1] if values else None


def _last(values: Sequence[float], count: int) -> list[float]:
    newest = list(islice(reversed(values), count))
    return newest[::-1]
