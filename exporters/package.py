"""Index a prepared source into a package: its files in place, byte ranges by layer, SHA-256 by piece."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from exporters.sources import PreparedSource
from shards import manifest as manifests
from shards.errors import CapacityError, ExportError
from shards.manifest import PIECE_BYTES, FileEntry, Manifest, ModelFacts, StageOf, WeightSpans
from shards.progress import Progress

_TOOLS = ("edge-agent", "openvino", "openvino-tokenizers", "openvino-genai")


def files_of(source: PreparedSource) -> dict[str, Path]:
    """Where each file of the package comes from, by its path in the package."""
    llama = source.llamacpp
    backends: dict[str, Path | None] = {
        manifests.GRAPH: source.graph,
        manifests.WEIGHTS: source.weights,
        manifests.DRAFT_VOCABULARY: source.draft_vocabulary,
        manifests.LLAMACPP_METADATA: llama.metadata if llama else None,
        manifests.LLAMACPP_TENSORS: llama.tensors if llama else None,
    }
    there = {path: file for path, file in backends.items() if file is not None}
    return there | tokenizer_files(source.tokenizer, source.detokenizer)


def tokenizer_files(tokenizer: Path | None, detokenizer: Path | None) -> dict[str, Path]:
    """The part of `files_of` that a stage folder has as well."""
    files: dict[str, Path] = {}
    for path, xml in ((manifests.TOKENIZER, tokenizer), (manifests.DETOKENIZER, detokenizer)):
        if xml is not None:
            files |= {path: xml, path.removesuffix("xml") + "bin": xml.with_suffix(".bin")}
    return files


def size_of(files: Mapping[str, Path]) -> int:
    """Bytes of all files together.

    Raises:
        ExportError: one of them is missing.
    """
    try:
        return sum(path.stat().st_size for path in files.values())
    except OSError as error:
        raise ExportError(f"a file of the model is missing ({error.strerror})", where=str(error.filename)) from error


def write_package(
    folder: Path,
    files: Mapping[str, Path],
    facts: ModelFacts,
    spans: WeightSpans,
    *,
    source: Mapping[str, Any],
    llamacpp: WeightSpans | None = None,
    stage: StageOf | None = None,
    scratch: Path,
    progress: Progress,
) -> Manifest:
    """Write a package into `folder`, the manifest last. Holds one piece (4 MiB) of the weights at a time.

    Args:
        folder: Made if it is not there.
        files: Where each file comes from, by its path in the package.
        facts: What the model is.
        spans: Which bytes of the graph's weights each layer needs; nothing for each, where there is no graph.
        source: Where the model came from, for people.
        llamacpp: Which bytes of the llama.cpp backend's tensors each layer needs; None: there is none.
        stage: Set for a stage folder.
        scratch: Files below this folder are taken, on the same file system; others are copied.
        progress: Told in bytes.

    Raises:
        ExportError: a file cannot be read or written.
        CapacityError: the disk is full.
    """
    total, done = size_of(files), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress("writing the package", done, total)

    entries = tuple(
        _add(path, file, folder / path, move=file.is_relative_to(scratch), advance=advance)
        for path, file in files.items()
    )
    manifest = Manifest(
        facts=facts,
        spans=spans,
        llamacpp=llamacpp,
        files=entries,
        stage=stage,
        source=dict(source),
        created_with={tool: version(tool) for tool in _TOOLS},
    )
    try:
        manifests.write(folder, manifest)
    except OSError as error:
        path = manifests.MANIFEST
        raise _explained(error, path, folder / path, len(manifest.model_dump_json())) from error
    return manifest


def _add(path: str, source: Path, target: Path, *, move: bool, advance: Callable[[int], None]) -> FileEntry:
    """Put one file in place and hash its pieces on the way."""
    pieces, size = [], 0
    try:
        wanted = source.stat().st_size
    except OSError as error:
        raise ExportError(f"the file cannot be read ({error.strerror})", where=str(source)) from error
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if move:
            source.replace(target)
        with (target if move else source).open("rb") as reader, target.open("r+b" if move else "wb") as writer:
            while piece := reader.read(PIECE_BYTES):
                if not move:
                    writer.write(piece)
                pieces.append(hashlib.sha256(piece).hexdigest())
                size += len(piece)
                advance(len(piece))
            writer.flush()
            os.fsync(writer.fileno())  # a manifest must never outlive, in a power cut, the bytes it speaks of
    except OSError as error:
        raise _explained(error, path, target, wanted) from error
    return FileEntry(path=path, size=size, pieces=tuple(pieces))


def _explained(error: OSError, path: str, target: Path, wanted: int) -> ExportError | CapacityError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(target.parent).free
        return CapacityError(
            f"the disk is full: the file has {wanted / 1e6:,.1f} MB, {free / 1e6:,.1f} MB are left",
            where=path,
            hint="Nothing was left behind. Free some space, or choose another place with -o.",
        )
    return ExportError(f"the file cannot be written ({error.strerror or error})", where=path)
