"""`edge-agent bench`: speed, as ratios within one run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.cli import output

if TYPE_CHECKING:
    from agent.bench.report import Report
    from agent.bench.sides import Effort
    from shards.progress import Progress

app = typer.Typer(
    help="Measure speed against what it is compared with, both in turn within one run.", no_args_is_help=True
)

Package = Annotated[Path | None, typer.Argument(help="A model package; without one, that of `edge-agent demo`.")]
Users = Annotated[str | None, typer.Option(help="Numbers of users, e.g. 1,8,16.")]
Starts = Annotated[int | None, typer.Option(min=1, help="Times all processes are started afresh.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Counted rounds of each start.")]
Tokens = Annotated[int | None, typer.Option(min=8, help="New tokens of each answer.")]
Quick = Annotated[bool, typer.Option(help="Fewer users, rounds and tokens: under a minute.")]
Save = Annotated[Path | None, typer.Option("--output", "-o", help="Also write the JSON to this file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the raw results as JSON.")]


def _register(name: str, what: str, example: str) -> None:
    """Make a command of the module `agent.bench.<name>`, which has EFFORT, QUICK and `run`."""

    def command(
        package: Package = None,
        users: Users = None,
        starts: Starts = None,
        rounds: Rounds = None,
        tokens: Tokens = None,
        quick: Quick = False,
        save: Save = None,
        as_json: AsJson = False,
    ) -> None:
        from agent.bench.sides import Effort

        bench = import_module(f"agent.bench.{name}")
        default: Effort = bench.QUICK if quick else bench.EFFORT
        effort = Effort(
            users=_numbers(users) or default.users,
            rounds=rounds or default.rounds,
            new_tokens=tokens or default.new_tokens,
            starts=starts or default.starts,
        )
        _run(lambda progress: bench.run(package or _demo_package(progress), effort, progress), save, as_json)

    app.command(name, help=f"{what}\n\nExits with 1 if a target is missed.\n\nExample: {example}")(command)


_register(
    "parity",
    "One stage against openvino_genai's continuous batching, and against the unsplit graph in exact mode.",
    "edge-agent bench parity --quick",
)
_register(
    "pipeline",
    "Two stages with a core each, against one core alone and against two replicas with half of the users each.",
    "edge-agent bench pipeline --users 1,8 --json -o pipeline.json",
)
_register(
    "memory",
    "What stage processes hold in memory, against what their layers weigh.",
    "edge-agent bench memory PACKAGE --json",
)
_register(
    "plan",
    "What the planner predicts against what is measured: one stage, two stages and two replicas, a core each.",
    "edge-agent bench plan --quick",
)


@app.command()
def tui(
    nodes: Annotated[int | None, typer.Option(min=2, help="PCs of the fleet that is shown.")] = None,
    rate: Annotated[float | None, typer.Option(min=1.0, help="Tokens a second of an answer.")] = None,
    seconds: Annotated[float | None, typer.Option(min=1.0, help="Length of each load.")] = None,
    quick: Annotated[bool, typer.Option(help="Shorter: well under a minute.")] = False,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Whether the screen keeps up: the real app before a synthetic head (no model runs) with many nodes.

    Exits with 1 if a target is missed.

    Example: edge-agent bench tui --quick
    """
    from agent.bench import tui as bench

    default = bench.QUICK if quick else bench.EFFORT
    effort = replace(
        default, nodes=nodes or default.nodes, rate=rate or default.rate, seconds=seconds or default.seconds
    )
    _run(lambda progress: bench.run(effort, progress), save, as_json)


def _numbers(text: str | None) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        numbers = (0,)
    if any(number < 1 for number in numbers):
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 1,8,16", param_hint="--users")
    return numbers


def _demo_package(progress: Progress) -> Path:
    from agent.cli.demo import demo_package

    return demo_package(progress)


def _run(bench: Callable[[Progress], Report], save: Path | None, as_json: bool) -> None:
    with output.progress_bars(quiet=as_json) as progress:
        report = bench(progress)
    data: dict[str, Any] = report.as_json()
    if save:
        save.write_text(json.dumps(data, indent=1), "utf-8")
    if as_json:
        output.print_json(data)
    else:
        for table in report.tables():
            output.show(table)
    if not report.ok:
        raise typer.Exit(1)
