"""`edge-agent simulate`: the scheduler over modelled machines, in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.cli import output

if TYPE_CHECKING:
    from rich.table import Table

    from agent.bench.report import Report
    from pipeline.simulation.report import SimulationReport

_SHIPPED = Path(__file__).parent.parent / "scenarios"


def simulate(
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCENARIO.toml|NAME]", help="A file, or the name of one that is shipped.", show_default=False
        ),
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="List the scenarios that are shipped.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw throughput and first token against users to this .png file.", show_default=False),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the JSON to this file.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Run the scheduler over modelled stages and links, in virtual time: plan for machines that are not here.

    Tells throughput, waiting times and how busy each stage is, and what every variant of the scenario changes.
    Exits with 1 if a published figure is missed.

    Example: edge-agent simulate paper-8b-two-nodes --plot two-nodes.png
    """
    if names:
        _list(as_json)
        return
    if scenario is None:
        raise typer.BadParameter("which scenario? --list shows those that are shipped", param_hint="SCENARIO")
    from pipeline.simulation.faults import located
    from pipeline.simulation.report import run
    from pipeline.simulation.scenario import read_scenario
    from shards.errors import ConfigurationError

    file = _file(scenario)
    if plot is not None:
        from agent import plots

        plots.check(plot)
    if save is not None and not save.parent.is_dir():
        raise ConfigurationError(f"there is no folder {save.parent}", where=str(save))
    read = read_scenario(file)
    with output.progress_bars(quiet=as_json) as progress:
        try:
            outcome = run(read, progress)
        except ConfigurationError as error:
            raise located(error, where=str(file)) from error
    from agent.cli.simulate_tables import as_report, draw, tables

    report = as_report(outcome)
    data: dict[str, Any] = report.as_json()
    if save is not None:
        save.write_text(json.dumps(data, indent=1), "utf-8")
    if plot is not None:
        draw(outcome, plot)
    if as_json:
        output.print_json(data)
    else:
        _show(outcome, report, tables(outcome))
    if not report.ok:
        raise typer.Exit(1)


def shipped() -> dict[str, Path]:
    """The scenarios that come with the program, by name."""
    return {file.stem: file for file in sorted(_SHIPPED.glob("*.toml"))}


def _file(scenario: str) -> Path:
    from shards.errors import ConfigurationError

    found = shipped().get(scenario, Path(scenario))
    if not found.is_file():
        raise ConfigurationError(
            f"there is no such file, and no shipped scenario is called so ({', '.join(shipped())} are)",
            where=scenario,
            hint="edge-agent simulate --list shows them.",
        )
    return found


def _list(as_json: bool) -> None:
    from pipeline.simulation.scenario import read_scenario

    about = {name: read_scenario(file).about for name, file in shipped().items()}
    if as_json:
        output.print_json(about)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table("scenario", "about")
    for name, text in about.items():
        table.add_row(name, Text(_flowing(text)))
    output.show(table)


def _flowing(text: str) -> str:
    """Text without its line breaks: the terminal makes its own."""
    return " ".join(text.split())


def _show(outcome: SimulationReport, report: Report, results: list[Table]) -> None:
    if outcome.scenario.about:
        output.console().print(_flowing(outcome.scenario.about), markup=False)
    for table in results:
        output.show(table)
    if report.targets:
        output.show(report.tables()[-1])
