"""What a simulation came to, for people, programs and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from agent import plots
from agent.bench.report import Report, Target
from pipeline.simulation.measures import Measures
from pipeline.simulation.report import Row, SimulationReport

_HEADS = (
    "tok/s",
    "all\ndecode",
    "first\ns",
    "p95",
    "token\nms",
    "p99",
    "busy",
    "bub-\nbles",
    "KV",
    "fast-\ner",
    "soon-\ner",
)
"""Narrow, so that a terminal of 80 columns shows all of them. Busy is the busiest stage."""


def as_report(outcome: SimulationReport) -> Report:
    """As the benchmarks report: `results` has a flat row for each variant and load, `runs` all there is."""
    scenario = outcome.scenario
    return Report(
        f"simulate {scenario.name}",
        {"about": scenario.about, "sources": list(scenario.sources), "base": scenario.base},
        [
            Target(
                check.what,
                f"{check.wanted:g} within {100 * check.within:g} %",
                "nothing" if check.got is None else round(check.got, 3),
                check.ok,
            )
            for check in outcome.checks
        ],
        [_flat(row) for row in outcome.rows],
        [row.as_json() for row in outcome.rows],
    )


def _flat(row: Row) -> dict[str, Any]:
    measures = row.measures
    return {
        "variant": row.variant,
        "load": row.load,
        "users": row.users,
        "phase": measures.phase,
        "decode": measures.decode,
        "first_p50_ms": measures.first_p50_ms,
        "first_p95_ms": measures.first_p95_ms,
        "between_p50_ms": measures.between_p50_ms,
        "between_p99_ms": measures.between_p99_ms,
        "busiest": max(stage.busy for stage in row.stages),
        "bubbles": sum(stage.bubble for stage in row.stages) / len(row.stages),
        "kv_peak": row.kv_peak,
        "faster": row.faster,
        "sooner": row.sooner,
    }


def tables(outcome: SimulationReport) -> list[Table]:
    """A table for each variant: a row for each load, and for each cohort of it where there are several."""
    scenario, shown = outcome.scenario, dict[str, Table]()
    for row in outcome.rows:
        if row.variant not in shown:
            shown[row.variant] = _empty_table(row.variant, scenario.base)
        flat = _flat(row)
        shown[row.variant].add_row(
            Text(row.load),
            f"{row.measures.phase:.2f}",
            *_times(row.measures),
            *(f"{flat[name]:.0%}" for name in ("busiest", "bubbles", "kv_peak")),
            *(() if row.variant == scenario.base else (f"{row.faster:.2f}", f"{row.sooner:.2f}")),
        )
        for name, measures in row.cohorts.items():
            shown[row.variant].add_row(Text(f"  {name}"), f"{measures.phase:.2f}", *_times(measures))
    return list(shown.values())


def _empty_table(variant: str, base: str) -> Table:
    title = variant if variant == base else f"{variant}, against {base}"
    table = Table(title=Text(title), title_justify="left", box=SIMPLE, padding=0)
    table.add_column("load")
    for head in _HEADS if variant != base else _HEADS[:-2]:
        table.add_column(head, justify="right")
    return table


def draw(outcome: SimulationReport, path: Path) -> None:
    """Throughput against users, and first token against users, a line for each variant."""
    throughput: dict[str, list[tuple[float, float]]] = {}
    first: dict[str, list[tuple[float, float]]] = {}
    for row in outcome.rows:
        throughput.setdefault(row.variant, []).append((row.users, row.measures.phase))
        first.setdefault(row.variant, []).append((row.users, row.measures.first_p50_ms / 1e3))
    drawn = [
        plots.Panel("throughput", "users", "tokens a second", throughput),
        plots.Panel("median first token", "users", "seconds", first),
    ]
    plots.panels(path, outcome.scenario.name, drawn, log_x=True)


def _times(measures: Measures) -> list[str]:
    """Decode throughput, first token in seconds, time between tokens in milliseconds."""
    return [
        _number(measures.decode, 2),
        _number(measures.first_p50_ms / 1e3, 2),
        _number(measures.first_p95_ms / 1e3, 2),
        _number(measures.between_p50_ms, 0),
        _number(measures.between_p99_ms, 0),
    ]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
