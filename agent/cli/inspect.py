"""`edge-agent inspect`: what a package holds, and what a split of it would need."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.cli import output

if TYPE_CHECKING:
    from rich.table import Table

    from shards.manifest import Manifest

_SPLITS = (1, 2, 3, 4)
_KV_TOKENS = 1000
_KV_BYTES = 2
"""Of a cached number: f16, the GPU's; the CPU's default of 8 bits takes about half, exact mode twice as much."""


@dataclass(frozen=True, slots=True)
class StageNeeds:
    """What one stage of a split takes."""

    first_layer: int
    end_layer: int
    weights_bytes: int
    kv_bytes: int
    """For 1000 tokens."""


def inspect(
    package: Annotated[Path, typer.Argument(show_default=False)],
    stages: Annotated[
        int | None,
        typer.Option(min=1, help="Show a split in this many stages. Default: 1 to 4.", show_default=False),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Hash all files again and compare with the manifest.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show the model package in the folder PACKAGE: facts, bytes of each layer, what each stage of a split would need.

    Example: edge-agent inspect smollm2 --stages 3
    """
    from shards.store import PackageStore

    store = PackageStore(package)
    manifest = store.manifest
    wanted = _SPLITS if stages is None else (stages,)
    splits: dict[int, list[StageNeeds]] = {}
    if manifest.stage is None:
        splits = {count: needs(manifest, count) for count in wanted if stages or count <= manifest.facts.layers}
    if check:
        with output.progress_bars(quiet=as_json) as progress:
            store.verify(store.all_pieces(), progress)
    if as_json:
        output.print_json(_as_json(manifest, splits, check))
    else:
        _show(manifest, splits, check)


def needs(manifest: Manifest, stages: int) -> list[StageNeeds]:
    """The split in `stages` stages that are read in the same time, as `edge-agent serve` divides by default.

    Raises:
        ConfigurationError: the model has fewer layers.
    """
    from shards.balance import Costs, balance

    facts, spans = manifest.facts, manifest.main_spans
    edges = [int(edge) for edge in balance([Costs.of_bytes(spans)], stages)]  # by bytes, layers are not divided
    kv = 2 * facts.kv_heads * facts.head_size * _KV_BYTES * _KV_TOKENS
    return [
        StageNeeds(first, end, _bytes(spans.of_stage(first, end)), kv * (end - first)) for first, end in pairwise(edges)
    ]


def _bytes(spans: tuple[tuple[int, int], ...]) -> int:
    return sum(end - start for start, end in spans)


def _as_json(manifest: Manifest, splits: dict[int, list[StageNeeds]], checked: bool) -> dict[str, Any]:
    spans = manifest.main_spans
    return {
        "package_id": manifest.package_id,
        "format": manifest.format,
        "facts": manifest.facts.model_dump(mode="json"),
        "stage": manifest.stage and manifest.stage.model_dump(),
        "files": {entry.path: entry.size for entry in manifest.files},
        "bytes": {
            "shared": _bytes(spans.shared),
            "embedding": _bytes(spans.embedding),
            "layers": [_bytes(layer) for layer in spans.layers],
            "head": _bytes(spans.head),
        },
        "splits": {
            str(count): [
                {
                    "first_layer": stage.first_layer,
                    "end_layer": stage.end_layer,
                    "weights_bytes": stage.weights_bytes,
                    f"kv_bytes_per_{_KV_TOKENS}_tokens": stage.kv_bytes,
                }
                for stage in split
            ]
            for count, split in splits.items()
        },
        "source": manifest.source,
        "created_with": manifest.created_with,
        "checked": checked,
    }


def _show(manifest: Manifest, splits: dict[int, list[StageNeeds]], checked: bool) -> None:
    from rich.table import Table

    from agent.cli.tables import plain, titled

    facts = manifest.facts
    table = titled(facts.name)
    table.show_header = False
    if manifest.stage is not None:
        table.add_row("stage folder", f"layers {_range(manifest.stage.first_layer, manifest.stage.end_layer)} only")
    rows = {
        "architecture": facts.architecture or "unknown",
        "layers": facts.layers,
        "hidden size": facts.hidden_size,
        "KV heads": f"{facts.kv_heads} of {facts.head_size}",
        "vocabulary": f"{facts.vocabulary:,}"
        + (f", {facts.draft_vocabulary:,} in the head: a draft" if facts.draft_vocabulary else ""),
        "context": f"{facts.context_length:,} tokens",
        "stop tokens": ", ".join(map(str, facts.stop_tokens)) or "none",
        "chat template": "yes" if facts.chat_template else "no",
        "weights": facts.weights,
        "runs on": " and ".join(
            name for name, there in (("OpenVINO", manifest.has_openvino), ("llama.cpp", manifest.llamacpp)) if there
        ),
        "files": f"{len(manifest.files)}, {_amount(manifest.size)}" + (", all checked" if checked else ""),
        "id": manifest.package_id[:16],
    }
    for name, value in rows.items():
        table.add_row(name, plain(str(value)))
    output.show(table)
    output.show(_layer_table(manifest))
    if splits:
        split_table = Table(title="what a split would need, balanced by the bytes a token reads", title_justify="left")
        for name in ("stages", "layers", "weights", f"KV per {_KV_TOKENS} tokens (f16)"):
            split_table.add_column(name, justify="right")
        for count, split in splits.items():
            for number, stage in enumerate(split):
                split_table.add_row(
                    str(count) if number == 0 else "",
                    _range(stage.first_layer, stage.end_layer),
                    _amount(stage.weights_bytes),
                    _amount(stage.kv_bytes),
                    end_section=number == len(split) - 1,
                )
        output.show(split_table)


def _layer_table(manifest: Manifest) -> Table:
    """Bytes by part; neighbouring layers of one size share a row."""
    from rich.table import Table

    spans = manifest.main_spans
    table = Table(title="weights", title_justify="left")
    table.add_column("part")
    table.add_column("bytes", justify="right")
    table.add_row("shared by all stages", _amount(_bytes(spans.shared)))
    table.add_row("embedding", _amount(_bytes(spans.embedding)))
    sizes = [_bytes(layer) for layer in spans.layers]
    start = 0
    for end in range(1, len(sizes) + 1):
        if end == len(sizes) or sizes[end] != sizes[start]:
            name = "layer" if end - start == 1 else "each of layers"
            table.add_row(f"{name} {_range(start, end)}", _amount(sizes[start]))
            start = end
    table.add_row("final norm and head", _amount(_bytes(spans.head)))
    return table


def _amount(count: int) -> str:
    return f"{count / 1e6:,.2f} MB" if count >= 1e5 else f"{count / 1e3:,.2f} kB"


def _range(first: int, end: int) -> str:
    return str(first) if end - first == 1 else f"{first}-{end - 1}"
