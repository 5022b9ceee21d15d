"""`edge-agent demo`: from nothing to an answer, and where the time of each token went."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.cli import output
from agent.cli.ask import stream_answer
from agent.cli.draft_options import Draft, DraftTokens

if TYPE_CHECKING:
    from pipeline.averages import LastSteps
    from shards.progress import Progress

_MAX_TOKENS = 256
_HEAD = "head"


def demo(
    prompt: Annotated[str, typer.Option(help="What to ask the model.")] = "What is the capital of France?",
    stages: Annotated[int, typer.Option(min=1, help="Processes to divide the model over.")] = 2,
    draft: Draft = "none",
    draft_tokens: DraftTokens = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print answer and timings as JSON.")] = False,
) -> None:
    """Fetch a small model, divide it over processes of this PC, ask it something, and show where the time went.

    Downloads SmolLM2-135M-Instruct (93 MB) on first use and keeps it in your cache folder.

    Examples:

        edge-agent demo --prompt "Name three rivers."

        edge-agent demo --draft ngram --prompt "Say this ten times: the quick brown fox."
    """
    from agent import speculation
    from agent.cli.fleet_tables import guessing
    from agent.client import Client
    from agent.serving import Serving
    from pipeline.running import RunOptions

    with output.progress_bars(quiet=as_json) as progress:
        package = demo_package(progress)
        # exact: the same answer on every machine, and no tuning before it
        options = RunOptions(stages=stages, mode="exact", draft=draft, draft_tokens=draft_tokens)
        serving = Serving(package, options, port=0, progress=progress)
    with serving, Client(serving.url) as client:
        if not as_json:
            name = serving.model.manifest.facts.name
            output.note(f"{name} in {stages} stage processes, served at {serving.url}\n\n> {prompt}\n")
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_completion_tokens": _MAX_TOKENS,
        }
        began = monotonic()
        answer = stream_answer(client, body, quiet=as_json)
        since_first = monotonic() - began - answer["first_token_seconds"]
        snapshot = serving.model.copies[0].head.snapshot()
    # steps before the first token had the prompt, or warmed up
    times, guesses = _times(snapshot.times.over(since_first)), speculation.told(snapshot)
    if as_json:
        output.print_json({**answer, "stages": stages, "milliseconds_per_token": times, "speculation": guesses})
    else:
        _show(answer, times)
        if guesses is not None:
            output.show(guessing(guesses))


def demo_package(progress: Progress) -> Path:
    """The demo's model package, kept in the user's cache; downloaded and exported on first use, or if it is damaged.

    Raises:
        DownloadError: the model could not be fetched.
        ExportError: it could not be made a package.
    """
    from agent import paths
    from agent.download import SMOLLM2, smollm2_gguf
    from exporters.export import export
    from shards.errors import PackageError
    from shards.store import PackageStore

    package = paths.cache_folder() / "packages" / Path(SMOLLM2.gguf).stem
    try:
        store = PackageStore(package)
        store.verify(store.all_pieces(), progress)
        return package
    except PackageError:
        return export(str(smollm2_gguf(progress)), package, weights="keep", force=True, progress=progress).package


def _times(last: LastSteps) -> dict[str, float]:
    """Milliseconds of a token, which with one user is a step; medians.

    The wire's part is what the steps' interval has beyond the stages' computing. The head works while the stages do:
    its part is not on a token's way.
    """
    stages = {f"stage {number}": stage.compute for number, stage in enumerate(last.stages)}
    wire = max(0.0, last.interval - sum(stages.values()))
    parts = {**stages, "wire": wire, _HEAD: last.head + last.listeners}
    return {part: round(microseconds / 1000, 3) for part, microseconds in parts.items()}


def _show(answer: dict[str, Any], times: dict[str, float]) -> None:
    from rich.table import Table

    total = sum(milliseconds for part, milliseconds in times.items() if part != _HEAD)
    table = Table(title="where the time of a token goes", title_justify="left")
    table.add_column("part")
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    for part, milliseconds in times.items():
        share = "meanwhile" if part == _HEAD else f"{milliseconds / total:.0%}" if total else ""
        table.add_row(part, f"{milliseconds:.2f}", share)
    table.add_section()
    table.add_row("together", f"{total:.2f}", "")
    output.show("")
    output.show(table)
    rate = answer["tokens_per_second"]
    output.show(
        f"first token after {1000 * answer['first_token_seconds']:.0f} ms"
        + (f", then {rate:.1f} tokens/s" if rate else "")
    )
