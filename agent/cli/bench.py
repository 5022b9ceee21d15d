"""`edge-agent bench`: speed, as ratios within one run."""

from __future__ import annotations

import json
from collections.abc import Callable
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
Rounds = Annotated[int | None, typer.Option(min=1, help="Counted rounds.")]
Tokens = Annotated[int | None, typer.Option(min=8, help="New tokens of each answer.")]
Quick = Annotated[bool, typer.Option(help="Fewer users, rounds and tokens: under a minute.")]
Save = Annotated[Path | None, typer.Option("--output", "-o", help="Also write the JSON to this file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the raw results as JSON.")]


@app.command()
def parity(
    package: Package = None,
    users: Users = None,
    rounds: Rounds = None,
    tokens: Tokens = None,
    quick: Quick = False,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """One stage against openvino_genai's continuous batching, and against the unsplit graph in exact mode.

    Exits with 1 if a target is missed.

    Example: edge-agent bench parity --quick
    """
    from agent.bench import parity as bench

    effort = _effort(bench.QUICK if quick else bench.EFFORT, users, rounds, tokens)
    _run(bench.parity, package, effort, save, as_json)


@app.command()
def pipeline(
    package: Package = None,
    users: Users = None,
    rounds: Rounds = None,
    tokens: Tokens = None,
    quick: Quick = False,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Two stages with a core each, against one core alone and against two replicas with half of the users each.

    Exits with 1 if a target is missed.

    Example: edge-agent bench pipeline --users 1,8 --json -o pipeline.json
    """
    from agent.bench import pipeline as bench

    effort = _effort(bench.QUICK if quick else bench.EFFORT, users, rounds, tokens)
    _run(bench.pipeline, package, effort, save, as_json)


def _effort(default: Effort, users: str | None, rounds: int | None, tokens: int | None) -> Effort:
    from agent.bench.sides import Effort

    return Effort(_numbers(users) or default.users, rounds or default.rounds, tokens or default.new_tokens)


def _numbers(text: str | None) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        numbers = (0,)
    if any(number < 1 for number in numbers):
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 1,8,16", param_hint="--users")
    return numbers


def _run(
    bench: Callable[[Path, Effort, Progress], Report],
    package: Path | None,
    effort: Effort,
    save: Path | None,
    as_json: bool,
) -> None:
    from agent.cli.demo import demo_package

    with output.progress_bars(quiet=as_json) as progress:
        report = bench(package or demo_package(progress), effort, progress)
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
