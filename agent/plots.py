"""Pictures of figures, as PNG. matplotlib is heavy and optional: it is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from shards.errors import ConfigurationError

Series = Mapping[str, Sequence[tuple[float, float]]]
"""Points (x, y) of each line, by its name."""

_INCHES = (7.0, 4.5)
"""Of a panel: width and height."""
_DPI = 120
_MARKERS = "os^Dv*Xp"


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes."""

    title: str
    x_label: str
    y_label: str
    series: Series


@dataclass(frozen=True, slots=True)
class Bars:
    """One set of axes with a group of bars for each name, one bar of each series in it."""

    title: str
    y_label: str
    names: Sequence[str]
    series: Mapping[str, Sequence[float]]


def check(path: Path) -> None:
    """Whether a picture can be drawn to `path`: better known before long work than after it.

    Raises:
        ConfigurationError: matplotlib is not installed, the name does not end in .png, or there is no such folder.
    """
    if find_spec("matplotlib") is None:
        raise ConfigurationError(
            "pictures need matplotlib, which is not installed",
            where=str(path),
            hint='Install the extra: pip install "edge-agent[plots]"',
        )
    if path.suffix.lower() != ".png":
        raise ConfigurationError("a picture is a .png file", where=str(path))
    if not path.parent.is_dir():
        raise ConfigurationError(f"there is no folder {path.parent}", where=str(path))


def lines(path: Path, title: str, x_label: str, y_label: str, series: Series, *, log_x: bool = False) -> None:
    """Draw lines with a marker at each point; raises as `check`."""
    panels(path, "", [Panel(title, x_label, y_label, series)], log_x=log_x)


def panels(path: Path, title: str, drawn: Sequence[Panel], *, log_x: bool = False) -> None:
    """Draw several sets of lines side by side; raises as `check`.

    Args:
        path: The file, which is replaced.
        title: Above all of them.
        drawn: From left to right. A line keeps its colour in all of them.
        log_x: Whether the x axis doubles instead of growing evenly.
    """
    check(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_INCHES[0] * len(drawn), _INCHES[1]), layout="constrained")
    FigureCanvasAgg(figure)
    names = list(dict.fromkeys(name for panel in drawn for name in panel.series))
    for axes, panel in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        for name, points in panel.series.items():
            number = names.index(name)
            xs, ys = zip(*sorted(points), strict=True) if points else ((), ())
            axes.plot(
                xs, ys, label=name, color=f"C{number % 10}", marker=_MARKERS[number % len(_MARKERS)], markersize=4
            )
        axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        axes.set_ylim(bottom=0)
        if log_x:
            ticks = sorted({x for points in panel.series.values() for x, _ in points})
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
            axes.minorticks_off()
        axes.grid(alpha=0.3)
        if panel.series:
            axes.legend(fontsize="small")
    if title:
        figure.suptitle(title)
    figure.savefig(path, dpi=_DPI)


def bars(path: Path, title: str, drawn: Sequence[Bars]) -> None:
    """Draw several sets of bars below one another; raises as `check`.

    Args:
        path: The file, which is replaced.
        title: Above all of them.
        drawn: From top to bottom. A series keeps its colour in all of them.
    """
    check(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.5 * _INCHES[0], _INCHES[1] * len(drawn)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(len(drawn), 1, squeeze=False)[:, 0], drawn, strict=True):
        width = 0.8 / max(1, len(panel.series))
        for number, (name, values) in enumerate(panel.series.items()):
            places = [place - 0.4 + (number + 0.5) * width for place in range(len(panel.names))]
            axes.bar(places, values, width, label=name, color=f"C{number % 10}")
        axes.set(title=panel.title, ylabel=panel.y_label)
        axes.set_xticks(range(len(panel.names)), panel.names)
        axes.grid(axis="y", alpha=0.3)
        axes.legend(fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, dpi=_DPI)
