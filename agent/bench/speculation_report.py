"""What `bench speculation` shows: tables and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from agent import plots
from agent.bench.report import Report
from agent.bench.sides import RATE
from agent.bench.speculation_sides import NONE, adaptive
from agent.plots import Bars, Panel

ALL = "all domains"

_THROUGHPUT, _HOPS, _DOMAINS = "throughput.png", "hops.png", "domains.png"

_Row = Mapping[str, Any]


class SpeculationReport(Report):
    """A Report whose results are too many for one table."""

    def tables(self) -> list[Table]:
        """Rates by load, then what becomes of guesses by domain, then the targets."""
        return [self._loads(), self._domains(), *Report("", {}, self.targets).tables()]

    def _loads(self) -> Table:
        rows = _where(self.results, {"domain": ALL})
        sides = _names(rows, "side")
        table = Table(title=f"decoding tok/s, {ALL}", title_justify="left")
        for heading in ("ms a hop", "users", *sides):
            table.add_column(heading, justify="right")
        for hop_ms in _names(rows, "hop_ms"):
            for users in _names(rows, "users"):
                of_load = _where(rows, {"hop_ms": hop_ms, "users": users})
                cells = [_text(row[RATE], row["ratio"]) for row in of_load]
                table.add_row(f"{hop_ms:g}", str(users), *cells)
        return table

    def _domains(self) -> Table:
        table = Table(title="guesses by domain: all loads together, as many as pay", title_justify="left")
        for heading in ("domain", "drafter", "sent", "wasted", "right", "equal answers"):
            table.add_column(heading, justify="left" if heading in ("domain", "drafter") else "right")
        for domain in _names(self.results, "domain"):
            for drafter in self.settings["drafters"]:
                rows = _where(self.results, {"domain": domain, "side": adaptive(drafter)})
                sent, right, answers, same = (
                    sum(row[name] for row in rows)
                    for name in ("sent_guesses", "right_guesses", "answers", "equal_answers")
                )
                share = f"{right / sent:.0%}" if sent else "-"
                table.add_row(domain, drafter, str(sent), str(sent - right), share, f"{same} of {answers}")
        return table


def prepare(folder: Path) -> None:
    """Make the folder of the pictures.

    Raises:
        ConfigurationError: nothing can be drawn here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (_THROUGHPUT, _HOPS, _DOMAINS):
        plots.check(folder / name)


def draw(report: Report, folder: Path) -> None:
    """Write the pictures: rates by users and by hop delay; by domain, what guessing wins and how often it is right."""
    rows = report.results
    title = f"{report.settings['package']}, two stages, decoding"
    together = [row for row in rows if row["domain"] == ALL]
    hops, users = _names(together, "hop_ms"), _names(together, "users")
    by_users = [
        Panel(f"{ms:g} ms a hop", "users", "tokens/s", _lines(together, "users", {"hop_ms": ms})) for ms in hops
    ]
    plots.panels(folder / _THROUGHPUT, title, by_users, log_x=True)
    by_hop = [
        Panel(f"users: {count}", "ms a hop", "tokens/s", _lines(together, "hop_ms", {"users": count}))
        for count in users
    ]
    plots.panels(folder / _HOPS, title, by_hop)
    load = {"users": min(users), "hop_ms": min(hops)}
    by_domain = [
        _bars(report, load, "ratio", f"tokens/s, users: {min(users)}, {min(hops):g} ms a hop", f"of {NONE}"),
        _bars(report, load, "acceptance", "guesses that came true", "of those that were sent"),
    ]
    plots.bars(folder / _DOMAINS, title, by_domain)


def _bars(report: Report, load: _Row, figure: str, title: str, unit: str) -> Bars:
    """Of the sides that guess as many as pay, at one load."""
    heights: dict[str, list[float]] = {}
    for drafter in report.settings["drafters"]:
        wanted = {**load, "side": adaptive(drafter)}
        heights[drafter] = [row[figure] or 0.0 for row in _where(report.results, wanted)]
    return Bars(title, unit, _names(report.results, "domain"), heights)


def _lines(rows: Sequence[_Row], x: str, wanted: _Row) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in _where(rows, wanted):
        points = lines.setdefault(row["side"], [])
        if row[RATE] is not None:
            points.append((row[x], row[RATE]))
    return lines


def _where(rows: Iterable[_Row], wanted: _Row) -> list[_Row]:
    """Those with these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def _names(rows: Iterable[_Row], name: str) -> list[Any]:
    """All values of a column, in order."""
    return list(dict.fromkeys(row[name] for row in rows))


def _text(rate: float | None, ratio: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:.1f}" if ratio is None else f"{rate:.1f} ({ratio:.2f})"
