"""`edge-agent bench`: speed, as ratios within one run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

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
Plot = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Also draw the results, as PNGs in this folder.")]
Save = Annotated[Path | None, typer.Option("--output", "-o", help="Also write the JSON to this file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the raw results as JSON.")]

_Effort = TypeVar("_Effort", bound="Effort")


def _effort(default: _Effort, users: str | None, starts: int | None, rounds: int | None, tokens: int | None) -> _Effort:
    """A bench's own effort, but for what was asked for."""
    return replace(
        default,
        users=_numbers(users) or default.users,
        starts=starts or default.starts,
        rounds=rounds or default.rounds,
        new_tokens=tokens or default.new_tokens,
    )


def _register(name: str, what: str, *examples: str) -> None:
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
        bench = import_module(f"agent.bench.{name}")
        effort = _effort(bench.QUICK if quick else bench.EFFORT, users, starts, rounds, tokens)
        _run(lambda progress: bench.run(package or _demo_package(progress), effort, progress), save, as_json)

    app.command(name, help=_help(what, *examples))(command)


def _help(what: str, *examples: str) -> str:
    shown = "\n\n".join(f"Example: {example}" for example in examples)
    return f"{what}\n\nExits with 1 if a target is missed.\n\n{shown}"


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
_register(
    "prefill",
    "A long prompt that arrives among answers, and one that begins as an earlier one did; two stages with a core each."
    " --users says among how many answers.",
    "edge-agent bench prefill --quick",
    "edge-agent bench prefill PACKAGE --users 16 --rounds 6 --json -o prefill.json",
)
_register(
    "simulation",
    "What the simulator says of two stages with a core each against what they do, with the step times of the same run.",
    "edge-agent bench simulation --quick",
)


@app.command(
    help=_help(
        "Two stages with a core each under many users, against one core alone, two replicas, openvino_genai's"
        " continuous batching and hub-and-spoke.",
        "edge-agent bench concurrency --quick",
        "edge-agent bench concurrency PACKAGE --users 2,8,32 --starts 1 --json -o concurrency.json --plot pictures",
    )
)
def concurrency(
    package: Package = None,
    users: Users = None,
    starts: Starts = None,
    rounds: Rounds = None,
    tokens: Tokens = None,
    seconds: Annotated[
        float | None, typer.Option(min=1.0, help="How long users go on asking, instead of a number of questions.")
    ] = None,
    quick: Quick = False,
    plot: Plot = None,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Users, from one to many."""
    from agent.bench import concurrency as bench

    effort = _effort(bench.QUICK if quick else bench.EFFORT, users, starts, rounds, tokens)

    def measure(progress: Progress) -> Report:
        return bench.run(package or _demo_package(progress), effort, progress, seconds=seconds)

    _run(_drawn(measure, "concurrency_plots", plot), save, as_json)


@app.command(
    help=_help(
        "Two stages with a core each that guess how answers go on, against the same without guessing: by domain, by"
        " number of users, and over links that take their time.",
        "edge-agent bench speculation --quick",
        "edge-agent bench speculation PACKAGE --draft DRAFT_PACKAGE --users 1,4 --hops 0,50 --plot pictures"
        " -o speculation.json",
    )
)
def speculation(
    package: Package = None,
    draft: Annotated[
        Path | None, typer.Option(metavar="PACKAGE", help="A draft model's package, to guess with it too.")
    ] = None,
    users: Users = None,
    hops: Annotated[
        str | None, typer.Option(help="Milliseconds that each link between two PCs takes, e.g. 0,10,50.")
    ] = None,
    widths: Annotated[
        str | None, typer.Option(help="Fixed numbers of guesses to compare with, e.g. 2,4; 0: none.")
    ] = None,
    far_head: Annotated[
        bool, typer.Option("--far-head", help="The head on a PC of its own, not on that of the first stage.")
    ] = False,
    starts: Starts = None,
    rounds: Rounds = None,
    tokens: Annotated[int | None, typer.Option(min=8, help="Most new tokens of each answer.")] = None,
    quick: Quick = False,
    plot: Plot = None,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Guessing, with each drafter and in each way."""
    from agent.bench import speculation as bench

    effort = _effort(bench.QUICK if quick else bench.EFFORT, users, starts, rounds, tokens)
    fixed = _numbers(widths, "--widths", least=0)
    effort = replace(
        effort,
        hops=_numbers(hops, "--hops", least=0) or effort.hops,
        widths=tuple(width for width in fixed if width) if widths else effort.widths,
        local_head=not far_head,
    )

    def measure(progress: Progress) -> Report:
        return bench.run(package or _demo_package(progress), effort, progress, draft=draft)

    _run(_drawn(measure, "speculation_report", plot), save, as_json)


@app.command(
    help=_help(
        "OpenVINO and llama.cpp on the same GGUF: alone, in two stages with a core each, as two replicas and mixed,"
        " against llama-cpp-python by itself.",
        "edge-agent bench engines --quick",
        "edge-agent bench engines model.gguf --users 1,2,8 --json -o engines.json",
    )
)
def engines(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="[GGUF|PACKAGE]",
            help="A GGUF, or a package for both engines; without one, the GGUF of `edge-agent demo`.",
            show_default=False,
        ),
    ] = None,
    users: Users = None,
    starts: Starts = None,
    rounds: Rounds = None,
    tokens: Tokens = None,
    quick: Quick = False,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Engines, side by side."""
    from agent.bench import engines as bench
    from agent.download import smollm2_gguf

    effort = _effort(bench.QUICK if quick else bench.EFFORT, users, starts, rounds, tokens)

    def measure(progress: Progress) -> Report:
        package, gguf = bench.sources(source or smollm2_gguf(progress), progress)
        return bench.run(package, gguf, effort, progress)

    _run(measure, save, as_json)


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


@app.command()
def soak(
    package: Package = None,
    requests: Annotated[int | None, typer.Option(min=40, help="Requests after the warm-up.")] = None,
    quick: Annotated[bool, typer.Option(help="Fewer requests: about a minute.")] = False,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Whether a server holds no more after a long load than before: clients that come, leave and are cancelled.

    Exits with 1 if a target is missed.

    Example: edge-agent bench soak --requests 2000
    """
    from agent.bench import soak as bench

    default = bench.QUICK if quick else bench.EFFORT
    effort = replace(default, requests=requests or default.requests)
    _run(lambda progress: bench.run(package or _demo_package(progress), effort, progress), save, as_json)


def _numbers(text: str | None, option: str = "--users", least: int = 1) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        numbers = (least - 1,)
    if any(number < least for number in numbers):
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 1,8,16", param_hint=option)
    return numbers


def _demo_package(progress: Progress) -> Path:
    from agent.cli.demo import demo_package

    return demo_package(progress)


def _drawn(bench: Callable[[Progress], Report], pictures: str, folder: Path | None) -> Callable[[Progress], Report]:
    """The bench, with pictures of what it found where a folder for them is given.

    `agent.bench.<pictures>` has `prepare`, which says at once if nothing can be drawn there, and `draw`.
    """
    if folder is None:
        return bench
    module = import_module(f"agent.bench.{pictures}")
    module.prepare(folder)

    def measure(progress: Progress) -> Report:
        report = bench(progress)
        module.draw(report, folder)
        return report

    return measure


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
