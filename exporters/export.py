"""The export: prepare the source, index it, cut stage folders, verify, and only then put everything in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from exporters import verify
from exporters.package import files_of, size_of, write_package
from exporters.sources import Weights, prepare
from exporters.split import edges_of, stage_folder, write_stage
from exporters.verify import Verification
from exporters.workspace import check_space, check_target, publish, workspace
from shards.manifest import Manifest
from shards.progress import Progress, silent


@dataclass(frozen=True, slots=True)
class Export:
    """What an export made."""

    package: Path
    manifest: Manifest
    stages: tuple[Path, ...]
    """One folder per stage, with a split."""
    verification: Verification | None
    """None: it was switched off."""


def export(
    source: str,
    package: Path,
    *,
    weights: Weights | None = None,
    split: Sequence[int] = (),
    verified: bool = True,
    force: bool = False,
    progress: Progress = silent,
) -> Export:
    """Make a model package of `source` at `package`.

    Everything is made in a hidden folder beside the package and put in its place when it is finished and verified, so
    that nothing half-made is ever there; an error or Ctrl-C leaves what was there before.

    Args:
        source: An OpenVINO IR folder, a GGUF file, a Hugging Face folder or hub name.
        package: Where the package goes.
        weights: How to store the weights; None means what suits the source.
        split: Layers of each stage, to write a folder per stage beside the package as well.
        verified: Whether to compare with the whole model (which has to fit into memory for that).
        force: Whether a package that is there may be replaced.
        progress: Told of everything that takes longer than a second.

    Raises:
        ExportError: the source cannot be exported, the target is taken, or the verification failed.
        GraphError: the graph cannot be cut into stages.
        ConfigurationError: the split is not one of this model.
        CapacityError: the disk is too small.
    """
    from shards.graph import layer_spans

    package = package.expanduser().resolve()  # a link to a folder stays one: what it points at is replaced
    targets = [package, *(stage_folder(package, number) for number in range(len(split)))]
    for target in targets:
        check_target(target, force=force)
    with workspace(package) as scratch:
        sources = scratch / "source"
        sources.mkdir()
        prepared = prepare(source, sources, weights, progress)
        edges = edges_of(split, prepared.facts.layers) if split else []
        files = files_of(prepared)
        copied = {path: file for path, file in files.items() if not file.is_relative_to(scratch)}
        check_space(package.parent, size_of(copied) + (size_of(files) if split else 0))
        built = [scratch / target.name for target in targets]
        manifest = write_package(
            built[0], files, prepared.facts, layer_spans(prepared.graph),
            source=prepared.description, scratch=scratch, progress=progress,
        )  # fmt: skip
        chain = verify.halves(built[0], manifest.facts.layers)
        if split:
            chain = []
            for (first, end), folder in zip(edges, built[1:], strict=True):
                write_stage(built[0], first, end, folder, progress)
                chain.append(verify.stage_config(folder, first, end))
        verification = None
        if verified:
            tokens = verify.sample_tokens(built[0], manifest.facts)
            verification = verify.compare(built[0], chain, tokens, progress)
        for folder, target in zip(built, targets, strict=True):
            publish(folder, target)
    return Export(package, manifest, tuple(targets[1:]), verification)
