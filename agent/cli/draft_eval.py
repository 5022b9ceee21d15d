"""`edge-agent draft-eval`: how well drafts guess what a recorded model said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent.cli import output

if TYPE_CHECKING:
    from rich.table import Table

    from agent.draft_eval.evaluation import Effect, Side

_SHOWN = (1, 2, 3, 4, 6, 8)
"""Positions in the table; JSON and picture have all."""


def draft_eval(
    capture: Annotated[Path, typer.Argument(help="A recording, from edge-agent capture.", show_default=False)],
    draft: Annotated[
        list[Path],
        typer.Argument(
            metavar="DRAFT...", help="Draft packages: whole, trimmed, trimmed and quantised.", show_default=False
        ),
    ],
    target: Annotated[
        Path | None,
        typer.Option(
            metavar="PACKAGE",
            help="The package of the recorded model: also check that its head makes the recorded tokens of the recorded"
            " hidden states, and that the drafts have its tokenizer.",
            show_default=False,
        ),
    ] = None,
    texts: Annotated[
        int | None, typer.Option(min=1, help="The first so many texts. Default: all.", show_default=False)
    ] = None,
    stride: Annotated[
        int, typer.Option(min=1, help="Guess on from each so many tokens; 1 is the most exact, and slow.")
    ] = 8,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Inference threads. Default: the device's choice.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw agreement by position to this .png file.", show_default=False)
    ] = None,
    save: Annotated[Path | None, typer.Option("--output", "-o", help="Also write the JSON to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Score drafts on what a model really answered: how many guesses are right, by position, and how far they carry.

    Drafts that differ in one thing only show what it costs: a trimmed head, or other weights. All are computed in f32,
    and sampled text is guessed with its own noise. Figures of wrong labels and of no context come with them, and have
    to be low.

    Exits with 1 if one is not.

    Example: edge-agent draft-eval answers.capture draft draft-8k draft-8k-int4 --plot drafts.png
    """
    from agent import plots
    from agent.capture.capture_file import Captured
    from agent.draft_eval.evaluation import effects, evaluate, report
    from agent.draft_eval.recomputed import check_packages, sampled_again
    from shards.errors import ConfigurationError

    if plot is not None:
        plots.check(plot)
    if save is not None and not save.parent.is_dir():
        raise ConfigurationError(f"there is no folder {save.parent}", where=str(save))
    captured = Captured.read(capture)
    if target is not None:
        check_packages(captured, target, draft)
    with output.progress_bars(quiet=as_json) as progress:
        again = None if target is None else sampled_again(captured, target, progress)
        sides = evaluate(captured, draft, most_texts=texts, stride=stride, threads=threads, progress=progress)
    made = report(captured, sides, {"capture": str(capture), "texts": texts, "stride": stride}, again)
    if save is not None:
        save.write_text(json.dumps(made.as_json(), indent=1), "utf-8")
    if plot is not None:
        _draw(sides, plot)
    if as_json:
        output.print_json(made.as_json())
    else:
        output.show(_table(sides))
        output.show(_positions(sides))
        if found := effects(sides):
            output.show(_effects(found))
        output.show(made.tables()[-1])
    if not made.ok:
        raise typer.Exit(1)


def _table(sides: Sequence[Side]) -> Table:
    from rich.table import Table

    tokens = sides[0].scores.tokens
    title = f"{tokens:,} recorded tokens: guesses that are right, tokens that a verify of 4 or 8 gives, and in the head"
    table = Table(title=title, title_justify="left")
    table.add_column("draft")
    for name in ("weights", "head", "right", "of 8 accepted", "a verify of 4", "of 8", "in head"):
        table.add_column(name, justify="right")
    for side in sides:
        scores = side.scores
        table.add_row(
            side.name,
            side.stored,
            str(side.facts.logits),
            f"{scores.agreement:.1%}",
            f"{scores.expected_accepted:.2f}",
            f"{scores.per_cycle[4]:.2f}",
            f"{scores.per_cycle[8]:.2f}",
            f"{scores.coverage:.1%}",
        )
    return table


def _positions(sides: Sequence[Side]) -> Table:
    from rich.table import Table

    table = Table(title="right, by position of the guess", title_justify="left")
    table.add_column("draft")
    table.add_column("behind")
    for position in _SHOWN:
        table.add_column(str(position), justify="right")
    for side in sides:
        scores = side.scores
        kinds = (
            ("true tokens", scores.in_true_context),
            ("its own guesses", scores.on_its_own),
            ("right ones alone", scores.accepted),
        )
        for number, (kind, shares) in enumerate(kinds):
            table.add_row(
                side.name if number == 0 else "",
                kind,
                *(f"{shares[position - 1]:.1%}" for position in _SHOWN),
                end_section=number == len(kinds) - 1,
            )
    return table


def _effects(found: Sequence[Effect]) -> Table:
    from rich.table import Table

    table = Table(title="what one change does", title_justify="left")
    for name in ("change", "from", "to"):
        table.add_column(name)
    for name in ("agreement, points", "lost", "won", "of 8 accepted"):
        table.add_column(name, justify="right")
    for effect in found:
        table.add_row(
            effect.what,
            effect.before,
            effect.after,
            f"{100 * effect.agreement:+.2f}",
            f"{effect.lost:.1%}",
            f"{effect.won:.1%}",
            f"{effect.expected_accepted:+.2f}",
        )
    return table


def _draw(sides: Sequence[Side], path: Path) -> None:
    from agent import plots
    from agent.plots import Panel

    def series(kind: str) -> dict[str, list[tuple[float, float]]]:
        return {
            side.name: [(k, 100 * share) for k, share in enumerate(getattr(side.scores, kind), 1)] for side in sides
        }

    plots.panels(
        path,
        f"Drafts on {sides[0].scores.tokens:,} recorded tokens",
        [
            Panel("behind true tokens", "position of the guess", "right, %", series("in_true_context")),
            Panel("behind its own guesses", "position of the guess", "right, %", series("on_its_own")),
            Panel("accepted", "position of the guess", "right with all before it, %", series("accepted")),
        ],
    )
