"""The llama.cpp backend of a package: a GGUF's tensors as they are, where each lies, and its hyperparameters."""

from __future__ import annotations

import struct
from collections import defaultdict
from pathlib import Path

from pydantic import ValidationError

from exporters.sources import LlamaCppSource, child
from exporters.sources.gguf_file import TYPE_NUMBERS, GgufFile
from exporters.workspace import check_space
from shards.errors import ExportError
from shards.llamacpp import binding
from shards.llamacpp.metadata import ARRAY, EMBEDDING, HEAD, Entry, GgufMetadata, Tensor, in_words
from shards.manifest import Span, WeightSpans, merge
from shards.progress import Progress

METADATA, TENSORS = "metadata.json", "tensors.bin"

_KEPT = ("general.architecture", "general.alignment", "general.quantization_version", "general.file_type")
_PATTERN = "attention.sliding_window_pattern"
_WINDOW_PERIODS = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "olmo2": 4, "cohere2": 4, "exaone4": 4}
"""Of so many layers, llama.cpp lets the last see everything and the others a window, unless the file says otherwise. It
counts from a stage's own first layer, so a package says it of each layer."""
_BOOL = 7
_CHUNK = 4 * 2**20
_OTHER = "Export it with --backend openvino, or export the original Hugging Face model."


def prepare(file: GgufFile, workdir: Path, progress: Progress, *, checked: bool) -> LlamaCppSource:
    """Make the backend of a file in `workdir`, and see in a process of its own that llama.cpp can run it in stages.

    Raises:
        StageError: llama.cpp is not installed.
        ExportError: the file cannot be run so.
        CapacityError: the disk is too full.
    """
    binding.require()
    model = metadata_of(file)
    folder = workdir / "llamacpp"
    folder.mkdir()
    # the tensors, and while they are checked a stage of all layers but one
    check_space(folder, (2 if checked else 1) * sum(tensor.size for tensor in file.tensors))
    metadata, tensors = folder / METADATA, folder / TENSORS
    write_files(file, model, metadata, tensors)
    rows = 0
    if checked:
        arguments = {"path": str(file.path.resolve()), "folder": str(folder)}
        where = f"{file.path} (architecture {file.architecture})"
        hint = f"llama.cpp cannot run it. {_OTHER}"
        rows = child.run("llamacpp", arguments, folder / "check.log", progress, where=where, hint=hint)["rows"]
    return LlamaCppSource(metadata, tensors, spans_of(model), rows)


def metadata_of(file: GgufFile) -> GgufMetadata:
    """What a package keeps of a GGUF besides the tensors' bytes.

    Raises:
        ExportError: it is not a model of layers, each of which takes one hidden state and gives one.
    """
    architecture = file.architecture
    where = f"{file.path} (architecture {architecture})"
    embedding = file.tensor(f"{EMBEDDING}weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ExportError("the file has no embedding of tokens", where=where, hint=_OTHER)
    if file.metadata.get(f"{architecture}.nextn_predict_layers"):
        raise ExportError(
            "it has layers that predict further tokens, which cannot be cut into stages", where=where, hint=_OTHER
        )
    depth = file.layers
    begin = min(tensor.start for tensor in file.tensors)
    try:
        return GgufMetadata(
            architecture=architecture,
            depth=depth,
            width=file.metadata.get(f"{architecture}.embedding_length"),
            vocabulary=embedding.shape[1],
            alignment=file.metadata.get("general.alignment", 32),
            entries=_entries(file, depth),
            tensors=tuple(
                Tensor(
                    name=tensor.name,
                    shape=tensor.shape,
                    kind=TYPE_NUMBERS[tensor.dtype],
                    start=tensor.start - begin,
                    size=tensor.size,
                )
                for tensor in file.tensors
            ),
        )
    except ValidationError as error:
        raise ExportError(f"the file cannot be cut into layers: {in_words(error)}", where=where, hint=_OTHER) from None


def spans_of(model: GgufMetadata) -> WeightSpans:
    """Which bytes of the tensors' file each layer needs."""
    layers: defaultdict[int, list[Span]] = defaultdict(list)
    parts: dict[str, list[Span]] = {"embedding": [], "head": [], "shared": []}
    for tensor in model.tensors:
        span = tensor.start, tensor.start + tensor.size
        if tensor.layer is not None:
            layers[tensor.layer].append(span)
            continue
        of_vocabulary = model.is_of_vocabulary(tensor)
        is_embedding = of_vocabulary and tensor.name.startswith(EMBEDDING)
        if is_embedding:
            parts["embedding"].append(span)
        if of_vocabulary and (tensor.name.startswith(HEAD) or (is_embedding and model.is_tied)):
            parts["head"].append(span)
        elif not is_embedding:
            parts["shared"].append(span)
    return WeightSpans(
        **{name: merge(spans) for name, spans in parts.items()},
        layers=tuple(merge(layers[layer]) for layer in range(model.depth)),
    )


def write_files(file: GgufFile, model: GgufMetadata, metadata: Path, tensors: Path) -> None:
    """Write the two files of the backend.

    Raises:
        ExportError: a file cannot be read or written.
    """
    begin = min(tensor.start for tensor in file.tensors)
    left = max(tensor.start + tensor.size for tensor in model.tensors)
    try:
        metadata.write_text(model.model_dump_json(), "utf-8")
        with file.path.open("rb") as reader, tensors.open("wb") as writer:
            reader.seek(begin)
            while left:
                data = reader.read(min(left, _CHUNK))
                if not data:
                    raise ExportError("the file became shorter", where=str(file.path), hint="Download it again.")
                writer.write(data)
                left -= len(data)
    except OSError as error:
        raise ExportError(f"the tensors cannot be copied ({error.strerror or error})", where=str(file.path)) from error


def _entries(file: GgufFile, depth: int) -> tuple[Entry, ...]:
    prefix = f"{file.architecture}."
    entries = {
        key: Entry(key=key, kind=_kind(file, key), value=tuple(value) if isinstance(value, list) else value)
        for key, value in file.metadata.items()
        if key in _KEPT or key.startswith(prefix)
    }
    key = prefix + _PATTERN
    period = file.metadata.get(key, _WINDOW_PERIODS.get(file.architecture))
    if isinstance(period, int) and period > 0:
        windows = tuple(layer % period < period - 1 for layer in range(depth))
        entries[key] = Entry(key=key, kind=_BOOL, value=windows)
    return tuple(entries.values())


def _kind(file: GgufFile, key: str) -> int:
    """GGUF's number of a value's type; of the items, where it is an array."""
    start, _ = file.spans[key]
    with file.path.open("rb") as stream:
        stream.seek(start)
        kind, item = struct.unpack("<II", stream.read(8).ljust(8, b"\0"))
    return int(item if kind == ARRAY else kind)
