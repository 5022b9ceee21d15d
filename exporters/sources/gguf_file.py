"""The header of a GGUF file, read and checked before any other code trusts it.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 2 and 3, little endian).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from shards.errors import ExportError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_MOST_ENTRIES, _MOST_BYTES = 2**16, 2**26
"""Key-value pairs, or tensors; bytes of a header. Several times what the largest models have: a damaged number must not
turn gigabytes of weights into Python objects."""
_COUNTS = struct.Struct("<QQ")
_AGAIN = "Download the file again."
_SHOWN = 64

_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
"""Tensor types: name, weights in a block, bytes of a block."""

TYPE_NUMBERS = {name: number for number, (name, _, _) in _TYPES.items()}
"""The format's number of each type of tensor."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies and how it is stored. `shape` has the fastest axis first, as the file has it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    start: int
    """Byte in the file."""
    size: int
    """Bytes."""

    @property
    def elements(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file whose header is sound and whose tensors lie within it."""

    path: Path
    metadata: dict[str, Any]
    spans: dict[str, tuple[int, int]]
    """Bytes [start, end) of each value, type included."""
    tensors: tuple[GgufTensor, ...]

    @property
    def metadata_end(self) -> int:
        """Byte after the last key-value pair."""
        return max((end for _, end in self.spans.values()), default=8 + _COUNTS.size)

    @property
    def architecture(self) -> str:
        """The file's own word for the architecture."""
        return str(self.metadata.get("general.architecture", "unknown"))

    @property
    def tensor_types(self) -> str:
        """The quantisations in the file by share of bytes, e.g. 'Q4_K, Q6_K, F32'."""
        sizes: dict[str, int] = {}
        for tensor in self.tensors:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.size
        return ", ".join(sorted(sizes, key=lambda name: -sizes[name]))

    @property
    def layers(self) -> int:
        """Decoder layers, as the metadata says.

        Raises:
            ExportError: it says nothing that can be.
        """
        count = self.metadata.get(f"{self.architecture}.block_count")
        if not isinstance(count, int) or not 0 < count <= len(self.tensors):
            raise ExportError(
                f"the file is damaged: it is to have {count} layers, of {len(self.tensors)} tensors",
                where=str(self.path),
                hint=_AGAIN,
            )
        return count

    def tensor(self, name: str) -> GgufTensor | None:
        """One tensor, if the file has it."""
        return next((tensor for tensor in self.tensors if tensor.name == name), None)

    def write_tokenizer(self, target: Path, pre: str) -> None:
        """Write a GGUF with the same metadata and no tensor: all that a reader of the tokenizer needs.

        Args:
            target: The file to write.
            pre: What it says of the splitting of text (`tokenizer.ggml.pre`) instead of what this file says.
        """
        start, end = self.spans["tokenizer.ggml.pre"]
        name = pre.encode()
        with self.path.open("rb") as source, target.open("wb") as sink:
            head = source.read(8)
            _, pairs = _COUNTS.unpack(source.read(_COUNTS.size))
            sink.write(head + _COUNTS.pack(0, pairs) + source.read(start - source.tell()))
            sink.write(struct.pack("<IQ", _STRING, len(name)) + name)
            source.seek(end)
            sink.write(source.read(self.metadata_end - end))


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file and check that every tensor lies within the file.

    Raises:
        ExportError: it is not a GGUF, of an unknown version, one of several parts, damaged or cut short.
    """
    try:
        with path.open("rb") as file:
            return _Reader(path, file).read()
    except OSError as error:
        raise ExportError(
            f"the file cannot be read ({error.strerror})", where=str(path), hint="Check its permissions."
        ) from None


class _Reader:
    """Reads one header. Nothing is allocated for a length before the file is known to hold as much."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._size = path.stat().st_size

    def read(self) -> GgufFile:
        magic = self._file.read(4)
        if magic != _MAGIC:
            raise self._error(f"this is not a GGUF file: it begins with {magic!r}, not {_MAGIC!r}", "Check the path.")
        version = self._scalar("I")
        if version & 0xFFFF == 0:
            raise self._error("the file is big endian; only little endian GGUF can be read", "Look for another file.")
        if version not in _VERSIONS:
            raise self._error(
                f"the file has GGUF version {version}; versions {_VERSIONS[0]} and {_VERSIONS[1]} can be read",
                "Convert the model again with current tools.",
            )
        tensors, pairs = self._scalar("Q"), self._scalar("Q")
        if max(tensors, pairs) > _MOST_ENTRIES:
            raise self._error(
                f"the file is cut short or damaged: it is to have {tensors} tensors and {pairs} key-value pairs", _AGAIN
            )
        metadata: dict[str, Any] = {}
        spans: dict[str, tuple[int, int]] = {}
        for _ in range(pairs):
            key = self._text()
            if key in metadata:
                raise self._damaged(f"it has {_word(key)} twice")
            start = self._file.tell()
            metadata[key] = self._value(self._scalar("I"), key)
            spans[key] = (start, self._file.tell())
        parts = metadata.get("split.count", 0)
        if isinstance(parts, int) and parts > 1:
            raise self._error(
                f"the file is one of {parts} parts of a model",
                "Join the parts first: llama-gguf-split --merge FIRST-PART.gguf WHOLE.gguf",
            )
        entries = [self._entry() for _ in range(tensors)]
        if len({name for name, *_ in entries}) < len(entries):
            raise self._damaged("two of its tensors have the same name")
        return GgufFile(self._path, metadata, spans, self._place(entries, metadata.get("general.alignment", 32)))

    def _entry(self) -> tuple[str, tuple[int, ...], tuple[str, int, int], int]:
        name = self._text()
        dimensions = self._scalar("I")
        if dimensions > _MAX_DIMENSIONS:
            raise self._damaged(f"the tensor {_word(name)} has {dimensions} dimensions")
        shape = tuple(self._scalar("Q") for _ in range(dimensions))
        number = self._scalar("I")
        if number not in _TYPES:
            raise self._error(
                f"the tensor {_word(name)} has a type that is not known here (number {number})",
                "Use another quantisation of the model, for example Q4_K_M or Q8_0.",
            )
        return name, shape, _TYPES[number], self._scalar("Q")

    def _place(
        self, entries: list[tuple[str, tuple[int, ...], tuple[str, int, int], int]], alignment: Any
    ) -> tuple[GgufTensor, ...]:
        """Turn offsets into places in the file and check that they are in it."""
        if not isinstance(alignment, int) or alignment <= 0:
            raise self._damaged(f"its alignment is {_word(str(alignment))}")
        base = -(-self._file.tell() // alignment) * alignment
        placed = []
        for name, shape, (dtype, block, block_bytes), offset in entries:
            weights = math.prod(shape)
            if shape and shape[0] % block:
                raise self._damaged(
                    f"the rows of the tensor {_word(name)} hold {shape[0]} weights, {dtype} stores {block} together"
                )
            placed.append(GgufTensor(name, shape, dtype, base + offset, weights // block * block_bytes))
        needed = max((tensor.start + tensor.size for tensor in placed), default=base if entries else 0)
        if needed > self._size:
            raise self._error(f"the file is cut short: its tensors need {needed} bytes, it has {self._size}", _AGAIN)
        return tuple(placed)

    def _value(self, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            raise self._damaged(f"the value of {_word(key)} has the unknown type {kind}")
        item, count = self._scalar("I"), self._scalar("Q")
        if item in _SCALARS:
            layout = f"<{count}{_SCALARS[item]}"
            width = struct.calcsize(f"<{_SCALARS[item]}")
            return list(struct.unpack(layout, self._bytes(count * width)))
        if item != _STRING:
            raise self._damaged(f"the values of {_word(key)} have the unknown type {item}")
        return [self._text() for _ in range(count)]

    def _scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        return layout.unpack(self._bytes(layout.size))[0]

    def _text(self) -> str:
        # a token may be a piece of a character
        return self._bytes(self._scalar("Q")).decode("utf-8", errors="replace")

    def _bytes(self, count: int) -> bytes:
        at = self._file.tell()
        if count > self._size - at:
            raise self._error(
                f"the file is cut short or damaged: {count} bytes expected, {self._size - at} left", _AGAIN
            )
        if at + count > _MOST_BYTES:
            raise self._damaged(f"its header is to have at least {at + count} bytes, {_MOST_BYTES} at most are read")
        return self._file.read(count)

    def _damaged(self, what: str) -> ExportError:
        return self._error(f"the file is damaged: {what}", _AGAIN)

    def _error(self, what: str, hint: str) -> ExportError:
        return ExportError(what, where=str(self._path), hint=hint)


def _word(name: str) -> str:
    """A name out of a file, fit to be shown: a damaged one may be long, or speak to the terminal."""
    return name if name.isprintable() and len(name) <= _SHOWN else f"{name[:_SHOWN]!r}"
