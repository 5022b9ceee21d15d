"""`edge-agent export`: make a model package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agent.cli import output

if TYPE_CHECKING:
    from exporters.export import Export


def _parse_split(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(count) for count in text.split(",")) if text else ()
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of layer counts like 15,15") from None


def export(
    source: Annotated[str, typer.Argument(show_default=False)],
    package: Annotated[
        Path, typer.Option("--output", "-o", metavar="PACKAGE", help="Where the package goes.", show_default=False)
    ],
    weights: Annotated[
        Literal["keep", "int4", "int8", "fp16"] | None,
        typer.Option(
            help="How to store the weights. Default: an OpenVINO IR keeps its own, other sources become int4"
            " (group 128) where the extra 'export' is installed.",
            show_default=False,
        ),
    ] = None,
    backend: Annotated[
        Literal["openvino", "llamacpp", "both"] | None,
        typer.Option(
            help="What shall run the package. Default: all that can; llama.cpp runs .gguf files, where the extra"
            " 'llamacpp' is installed, and takes their weights as they are.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str,
        typer.Option(
            metavar="LAYERS",
            help="Also write one small folder per stage, PACKAGE-stage-0 and so on, for copying by hand: layers of each"
            " stage, e.g. 15,15.",
            show_default=False,
        ),
    ] = "",
    draft_vocabulary: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Make a draft whose head knows only the N most frequent tokens of --corpus: quicker guesses, a few"
            " more of them wrong. Such a package cannot be served by itself.",
            show_default=False,
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What tokens are counted in: a text like what will be answered, or an .npz with the counts of all"
            " token ids.",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify/--no-verify",
            help="Compare with the whole model on real tokens; the whole model has to fit into memory for that.",
        ),
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Replace a package that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Make a model package that a fleet can share.

    SOURCE is an OpenVINO IR folder, a .gguf file, a Hugging Face folder, or a model name on the hub (owner/name).

    Example: edge-agent export SmolLM2-135M-Instruct.Q4_1.gguf -o smollm2

    A draft: edge-agent export draft.gguf -o draft --draft-vocabulary 8192 --corpus answers.txt
    """
    layers = _parse_split(split)
    if (draft_vocabulary is None) != (corpus is None):
        raise typer.BadParameter("--draft-vocabulary and --corpus go together")
    with output.progress_bars(quiet=as_json) as progress:
        from exporters.draft_vocabulary import DraftWish
        from exporters.export import export as run

        draft = DraftWish(draft_vocabulary, corpus) if draft_vocabulary is not None and corpus is not None else None
        made = run(
            source,
            package,
            weights=weights,
            split=layers,
            draft=draft,
            backend=backend,
            verified=verify,
            force=force,
            progress=progress,
        )
    if as_json:
        output.print_json(_as_json(made))
    else:
        _show(made)


def _as_json(made: Export) -> dict[str, object]:
    facts, checked = made.manifest.facts, made.verification
    return {
        "package": str(made.package),
        "package_id": made.manifest.package_id,
        "bytes": made.manifest.size,
        "facts": facts.model_dump(mode="json", exclude={"chat_template"}),
        "source": made.manifest.source,
        "backends": [
            *(["openvino"] if made.manifest.has_openvino else []),
            *(["llamacpp"] if made.manifest.llamacpp else []),
        ],
        "llamacpp_rows_compared": made.llamacpp_rows,
        "stages": [str(folder) for folder in made.stages],
        "verification": checked
        and {
            "stages": checked.stages,
            "rows": checked.rows,
            "largest_difference": checked.largest_difference,
            "tolerance": checked.tolerance,
            "same_top": checked.same_top,
        },
    }


def _show(made: Export) -> None:
    from agent.cli.tables import plain, titled

    facts, checked = made.manifest.facts, made.verification
    table = titled(f"{facts.name} → {made.package}")
    table.show_header = False
    table.add_row("layers", str(facts.layers))
    table.add_row("weights", plain(facts.weights))
    table.add_row("size", f"{made.manifest.size / 1e6:,.1f} MB")
    for key, value in made.manifest.source.items():
        table.add_row(plain(key.replace("_", " ")), plain(str(value)))
    if made.llamacpp_rows == 0 or (checked is None and made.manifest.has_openvino):
        table.add_row("verified", "no (--no-verify)")
    if made.llamacpp_rows:
        table.add_row(
            "verified",
            f"2 llama.cpp stages against the whole model, {made.llamacpp_rows} tokens: largest difference of a logit 0",
        )
    if checked is not None:
        table.add_row(
            "verified",
            f"{checked.stages} stages against the whole model, {checked.rows} tokens: largest difference of a logit"
            f" {checked.largest_difference:.2g} ({checked.tolerance:.2g} allowed), same likeliest token"
            f" {checked.same_top:.1%}",
        )
    for folder in made.stages:
        table.add_row("stage folder", plain(str(folder)))
    output.show(table)
