"""A stage as a GGUF of its own, made on the node from the package's bytes: llama.cpp knows no stages, only models.

Its layers are numbered from 0 again. llama.cpp wants an embedding and a head in every model; where the stage uses
none, stand-ins take their place: of a few rows on a middle stage, and a hole in the file where the number of tokens
must be right. No bytes of the real ones are fetched or read.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

from shards import sparse
from shards.errors import CapacityError, PackageError
from shards.llamacpp.metadata import (
    BLOCK,
    EMBEDDING,
    HEAD,
    STRING,
    UINT32,
    Entry,
    GgufMetadata,
    Tensor,
    header,
)
from shards.manifest import Span
from shards.progress import Progress, silent

STAND_IN_TOKENS = 32
"""Rows of a middle stage's embedding, at most."""

_F32, _F16, _Q4_1 = 0, 1, 3
_Q4_1_WEIGHTS, _Q4_1_BYTES = 32, 20
_FIRST_STAGES_ALONE = ("embedding_scale",)
"""What is done to the embedding; llama.cpp does it to incoming hidden states as well."""
_COUNTED_FROM_LAYER_0 = ("leading_dense_block_count",)
_CHUNK = 4 * 2**20
PARTIAL = ".partial"
"""How the name of a file ends that is being made."""


@dataclass(frozen=True, slots=True)
class StageLayout:
    """What a stage's file holds."""

    first: int
    """First layer."""
    end: int
    """One past the last."""
    sources: tuple[Tensor | None, ...]
    """Where the bytes of each tensor come from; None: it is a stand-in, all zero."""
    head: bytes
    """What comes before the first tensor."""
    places: tuple[int, ...]
    """Where each tensor begins."""
    length: int
    """Bytes of the file, holes among them."""

    @property
    def size(self) -> int:
        """Bytes it takes on the disk."""
        return len(self.head) + sum(source.size for source in self.sources if source is not None)


def lay_out(model: GgufMetadata, first: int, end: int) -> StageLayout:
    """What the file of layers [first, end) holds."""
    is_first, is_tail = first == 0, end == model.depth
    vocabulary = model.vocabulary if is_first or is_tail else min(model.vocabulary, STAND_IN_TOKENS)
    tensors: list[Tensor] = []
    sources: list[Tensor | None] = []
    for tensor in model.tensors:
        layer = tensor.layer
        if layer is not None:
            if first <= layer < end:
                rest = tensor.name.removeprefix(f"{BLOCK}{layer}.")
                tensors.append(tensor.model_copy(update={"name": f"{BLOCK}{layer - first}.{rest}"}))
                sources.append(tensor)
        elif not model.is_of_vocabulary(tensor) or _is_used(model, tensor, is_first, is_tail):
            tensors.append(tensor)
            sources.append(tensor)
        else:
            tensors.append(_stand_in(tensor, vocabulary))
            sources.append(None)
    prefix = f"{model.architecture}."
    changed = {f"{prefix}block_count": end - first, f"{prefix}vocab_size": vocabulary}
    entries = [
        Entry(key="tokenizer.ggml.model", kind=STRING, value="no_vocab"),
        *(Entry(key=key, kind=UINT32, value=value) for key, value in changed.items()),
    ]
    for entry in model.entries:
        name, value = entry.key.removeprefix(prefix), entry.value
        if entry.key in changed or (not is_first and name in _FIRST_STAGES_ALONE):
            continue
        if isinstance(value, tuple) and entry.key.startswith(prefix) and len(value) == model.depth:
            value = value[first:end]  # one for each layer
        elif name in _COUNTED_FROM_LAYER_0 and isinstance(value, int):
            value = max(0, value - first)
        entries.append(entry.model_copy(update={"value": value}))
    head, places, length = header(model.alignment, entries, tensors)
    return StageLayout(first, end, tuple(sources), head, places, length)


def write(layout: StageLayout, tensors: Path, spans: Iterable[Span], target: Path, progress: Progress = silent) -> None:
    """Make a stage's file at `target`, which appears when it is whole.

    Args:
        layout: What it holds.
        tensors: The package's file of tensors.
        spans: Its bytes that were fetched for the stage.
        target: Where the file goes.
        progress: Told in bytes.

    Raises:
        PackageError: a tensor is not among the bytes that the stage fetched, or a file cannot be read or written.
        CapacityError: the disk is full.
    """
    known = tuple(spans)
    for source in filter(None, layout.sources):
        if not _is_within(source, known):
            raise PackageError(
                f"the tensor {source.name} is not among the bytes of layers {layout.first}-{layout.end - 1}",
                where=str(tensors),
                hint="Export the model again.",
            )
    partial = target.with_name(f"{target.name}.{os.getpid()}{PARTIAL}")
    try:
        partial.unlink(missing_ok=True)  # of a process of the same number
        sparse.create(partial, layout.length)
        with tensors.open("rb") as reader, partial.open("r+b") as writer:
            writer.write(layout.head)
            for place, origin in zip(layout.places, layout.sources, strict=True):
                progress("writing the stage's file", place, layout.length)
                if origin is not None:
                    _copy(reader, origin, writer, place)
            writer.flush()
            os.fsync(writer.fileno())
        partial.replace(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(target.parent).free
            raise CapacityError(
                f"the disk is full: the stage's file takes {layout.size} bytes, {free} are free",
                where=str(target),
                hint="Free some space.",
            ) from error
        raise PackageError(f"the stage's file cannot be written ({error})", where=str(target)) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def is_whole(layout: StageLayout, tensors: Path, target: Path) -> bool:
    """Whether a stage's file is there, each byte as the package has it."""
    try:
        with tensors.open("rb") as reader, target.open("rb") as file:
            if os.fstat(file.fileno()).st_size != layout.length or file.read(len(layout.head)) != layout.head:
                return False
            return all(
                _is_same(reader, source, file, place)
                for place, source in zip(layout.places, layout.sources, strict=True)
                if source is not None
            )
    except OSError:
        return False


def _is_within(tensor: Tensor, spans: Iterable[Span]) -> bool:
    return any(start <= tensor.start and tensor.start + tensor.size <= end for start, end in spans)


def _is_used(model: GgufMetadata, tensor: Tensor, is_first: bool, is_tail: bool) -> bool:
    """Whether a stage needs a tensor with a row for each token."""
    if tensor.name.startswith(EMBEDDING):
        return is_first or (is_tail and model.is_tied)
    return is_tail or not tensor.name.startswith(HEAD)


def _stand_in(tensor: Tensor, tokens: int) -> Tensor:
    """A tensor of zeros in place of one with a row for each token, as small as a type allows that llama.cpp maps.

    It would unpack some of the smaller types into memory as it loads.
    """
    shape = (*tensor.shape[:-1], tokens)
    weights = prod(shape)
    if len(shape) == 1:
        kind, size = _F32, 4 * weights
    elif shape[0] % _Q4_1_WEIGHTS:
        kind, size = _F16, 2 * weights
    else:
        kind, size = _Q4_1, weights // _Q4_1_WEIGHTS * _Q4_1_BYTES
    return Tensor(name=tensor.name, shape=shape, kind=kind, start=0, size=size)


def _is_same(reader: BinaryIO, source: Tensor, file: BinaryIO, place: int) -> bool:
    reader.seek(source.start)
    file.seek(place)
    parts = (min(_CHUNK, source.size - done) for done in range(0, source.size, _CHUNK))
    return all(reader.read(part) == file.read(part) for part in parts)


def _copy(reader: BinaryIO, source: Tensor, writer: BinaryIO, place: int) -> None:
    reader.seek(source.start)
    writer.seek(place)
    left = source.size
    while left:
        data = reader.read(min(left, _CHUNK))
        if not data:
            raise OSError(f"the tensor {source.name} ends early")
        writer.write(data)
        left -= len(data)
