"""What every benchmark and check prints and writes: raw results, and targets with what was wanted and got."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import psutil
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Target:
    """One figure that was promised."""

    what: str
    wanted: str
    got: float | str
    ok: bool


def at_least(what: str, got: float, least: float) -> Target:
    """A target that wants `got >= least`."""
    return Target(what, f">= {least:g}", round(got, 3), got >= least)


def at_most(what: str, got: float, most: float) -> Target:
    """A target that wants `got <= most`."""
    return Target(what, f"<= {most:g}", round(got, 3), got <= most)


def holds(what: str, ok: bool, got: str) -> Target:
    """A target that is a fact, not a figure."""
    return Target(what, "true", got, ok)


@dataclass(slots=True)
class Report:
    """The outcome of one benchmark."""

    bench: str
    settings: dict[str, Any]
    targets: list[Target] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    """Medians, a row for each load."""
    runs: list[dict[str, Any]] = field(default_factory=list)
    """Every single run, in the order it was made."""

    @property
    def ok(self) -> bool:
        """Whether every target was met."""
        return all(target.ok for target in self.targets)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {
            "bench": self.bench,
            "ok": self.ok,
            "machine": machine(),
            "settings": self.settings,
            "targets": [asdict(target) for target in self.targets],
            "results": self.results,
            "runs": self.runs,
        }

    def tables(self) -> list[Table]:
        """The report for people: the medians, then the targets."""
        out: list[Table] = []
        if self.results:
            medians = Table(title=f"{self.bench}: medians", title_justify="left")
            for name in self.results[0]:
                medians.add_column(name.replace("_", " "), justify="right")
            for row in self.results:
                medians.add_row(*(f"{v:.3g}" if isinstance(v, float) and v < 10 else _short(v) for v in row.values()))
            out.append(medians)
        targets = Table(title="targets", title_justify="left")
        targets.add_column("what")
        targets.add_column("wanted", justify="right")
        targets.add_column("got", justify="right")
        targets.add_column("")
        for target in self.targets:
            mark = "[green]ok[/green]" if target.ok else "[red]missed[/red]"
            targets.add_row(Text(target.what), target.wanted, Text(str(target.got)), mark)
        out.append(targets)
        return out


def _short(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def machine() -> dict[str, Any]:
    """The machine and the versions that a figure belongs to."""
    return {
        "processor": platform.processor() or platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "python": platform.python_version(),
        **{name: version(name) for name in ("edge-agent", "openvino", "openvino-genai", "numpy", "pyzmq")},
    }
