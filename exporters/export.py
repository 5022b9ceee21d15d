"""The export: prepare the source, index it, cut stage folders, verify, and only then put everything in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from exporters import draft_vocabulary, verify
from exporters.draft_vocabulary import DraftWish
from exporters.package import files_of, size_of, write_package
from exporters.sources import Backend, Weights, prepare
from exporters.split import edges_of, stage_folder, write_stage
from exporters.verify import Untrimmed, Verification
from exporters.workspace import check_space, check_target, publish, workspace
from shards.draft_vocabulary import token_ids
from shards.errors import ConfigurationError, ExportError
from shards.manifest import Manifest, WeightSpans
from shards.progress import Progress, silent


@dataclass(frozen=True, slots=True)
class Export:
    """What an export made."""

    package: Path
    manifest: Manifest
    stages: tuple[Path, ...]
    """One folder per stage, with a split."""
    verification: Verification | None
    """Of the OpenVINO backend. None: it was switched off, or the package has none."""
    llamacpp_rows: int | None
    """Tokens whose logits two llama.cpp stages made just as the whole model, to the bit (0: not compared); None: the
    package has no llama.cpp backend."""


def export(
    source: str,
    package: Path,
    *,
    weights: Weights | None = None,
    split: Sequence[int] = (),
    draft: DraftWish | None = None,
    backend: Backend | None = None,
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
        draft: Which tokens the head shall know, if not all: the package can then be a draft and nothing else.
        backend: What shall run the package; None: all that can (llama.cpp runs GGUF files, where it is installed).
        verified: Whether to compare with the whole model (which has to fit into memory for that).
        force: Whether a package that is there may be replaced.
        progress: Told of everything that takes longer than a second.

    Raises:
        ExportError: the source cannot be exported, the target is taken, or the verification failed.
        GraphError: the graph cannot be cut into stages.
        ConfigurationError: the split is not one of this model, or of a draft.
        CapacityError: the disk is too small.
    """
    from shards.graph import layer_spans

    if draft is not None and split:
        raise ConfigurationError("a draft runs as one stage, so it cannot be split", where=draft_vocabulary.OPTION)
    backend = _suited(backend, draft, split)
    package = package.expanduser().resolve()  # a link to a folder stays one: what it points at is replaced
    targets = [package, *(stage_folder(package, number) for number in range(len(split)))]
    for target in targets:
        check_target(target, force=force)
    with workspace(package) as scratch:
        sources = scratch / "source"
        sources.mkdir()
        prepared = whole = prepare(source, sources, weights, progress, backend, checked=verified)
        if split and prepared.graph is None:
            raise ExportError(
                f"stage folders are for OpenVINO; the package has {prepared.description['OpenVINO backend']}",
                where=source,
                hint="Leave --split out: the fleet sends each node its layers.",
            )
        if draft is not None:
            trimmed = scratch / "trimmed"
            trimmed.mkdir()
            prepared = draft_vocabulary.apply(whole, draft, trimmed, progress)
        edges = edges_of(split, prepared.facts.layers) if split else []
        files = files_of(prepared)
        copied = {path: file for path, file in files.items() if not file.is_relative_to(scratch)}
        check_space(package.parent, size_of(copied) + (size_of(files) if split else 0))
        llama = prepared.llamacpp
        built = [scratch / target.name for target in targets]
        manifest = write_package(
            built[0], files, prepared.facts,
            layer_spans(prepared.graph) if prepared.graph else WeightSpans.nothing(prepared.facts.layers),
            source=prepared.description, llamacpp=llama.spans if llama else None, scratch=scratch, progress=progress,
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
            kept = token_ids(built[0])
            untrimmed = None
            if kept is not None and whole.graph and whole.weights:
                untrimmed = Untrimmed(whole.graph, whole.weights, kept)
            if manifest.has_openvino:
                verification = verify.compare(built[0], chain, tokens, progress, untrimmed)
        for folder, target in zip(built, targets, strict=True):
            publish(folder, target)
    return Export(package, manifest, tuple(targets[1:]), verification, llama.checked_rows if llama else None)


def _suited(backend: Backend | None, draft: DraftWish | None, split: Sequence[int]) -> Backend | None:
    """The backends to make, where heads are trimmed or stage folders written for OpenVINO alone.

    Raises:
        ConfigurationError: the others were asked for.
    """
    refused = ("llamacpp", "both") if draft else ("llamacpp",) if split else ()
    if backend in refused:
        what = "a trimmed head is" if draft else "stage folders are"
        raise ConfigurationError(
            f"{what} for OpenVINO, not for llama.cpp", where="--backend", hint="Leave one of the options out."
        )
    return "openvino" if draft else backend
