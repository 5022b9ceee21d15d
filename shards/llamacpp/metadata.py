"""What a package keeps of a GGUF besides its tensors' bytes: the hyperparameters, and where each tensor lies.

Format of GGUF: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 3, little endian).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from shards.errors import PackageError

Scalar = bool | int | float | str

BLOCK = "blk."
"""Begins the names of the tensors of layers: `blk.7.attn_q.weight`."""
EMBEDDING = "token_embd."
HEAD = "output."

_SCALARS: dict[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""How each of GGUF's types of a value is packed."""
UINT32, STRING, ARRAY = 4, 8, 9

_MOST_TENSORS, _MOST_WEIGHTS, _MOST_BYTES = 2**16, 2**42, 2**44
"""Of a file, of a tensor, of a tensor: far more than there are, and the sums still fit into the format's 64 bits."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Entry(_Frozen):
    """A key with its value."""

    key: str
    kind: int = Field(description="GGUF's number of the type; of the items, where it is an array")
    value: Scalar | tuple[Scalar, ...] = Field(union_mode="smart")

    def pack(self) -> bytes:
        """As a GGUF has it.

        Raises:
            ValueError: the value is not of its type.
        """
        packed = _text(self.key)
        if isinstance(self.value, tuple):
            packed += struct.pack("<IIQ", ARRAY, self.kind, len(self.value))
            return packed + b"".join(self._item(item) for item in self.value)
        return packed + struct.pack("<I", self.kind) + self._item(self.value)

    def _item(self, value: Scalar) -> bytes:
        if self.kind == STRING:
            return _text(str(value))
        try:
            return struct.pack("<" + _SCALARS[self.kind], value)
        except (KeyError, struct.error, OverflowError) as error:
            raise ValueError(f"{self.key} is not of the type {self.kind} ({error})") from None


class Tensor(_Frozen):
    """A tensor, as the file has it. The fastest axis of `shape` is first."""

    name: str = Field(max_length=63)
    shape: tuple[PositiveInt, ...] = Field(min_length=1, max_length=4)
    kind: int = Field(ge=0, lt=2**32, description="ggml's number of the type")
    start: int = Field(ge=0, le=_MOST_BYTES * _MOST_TENSORS, description="byte in the package's file of tensors")
    size: int = Field(ge=0, le=_MOST_BYTES, description="bytes")

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        if prod(self.shape) > _MOST_WEIGHTS:
            raise ValueError(f"the tensor {self.name} is to have {prod(self.shape)} weights")
        return self

    @property
    def layer(self) -> int | None:
        """The layer it belongs to."""
        number = self.name.removeprefix(BLOCK).partition(".")[0]
        return int(number) if self.name.startswith(BLOCK) and number.isdecimal() else None

    def pack(self, offset: int) -> bytes:
        """As a GGUF's list of tensors has it."""
        dimensions = struct.pack(f"<I{len(self.shape)}Q", len(self.shape), *self.shape)
        return _text(self.name) + dimensions + struct.pack("<IQ", self.kind, offset)


class GgufMetadata(_Frozen):
    """A GGUF without its tensors' bytes and its tokenizer."""

    architecture: str
    depth: int = Field(gt=0, description="decoder layers")
    width: int = Field(gt=0, description="hidden size")
    vocabulary: int = Field(gt=0, lt=2**32, description="rows of the embedding")
    alignment: Literal[8, 16, 32, 64, 128, 256] = 32
    entries: tuple[Entry, ...]
    tensors: tuple[Tensor, ...] = Field(max_length=_MOST_TENSORS)

    @model_validator(mode="after")
    def _sound(self) -> Self:
        for entry in self.entries:
            entry.pack()
        layers = {tensor.layer for tensor in self.tensors} - {None}
        if self.depth > len(layers) or layers != set(range(self.depth)):
            raise ValueError(f"there are tensors of {len(layers)} layers, the model has {self.depth}")
        return self

    @property
    def is_tied(self) -> bool:
        """Whether the embedding is the head matrix, too."""
        return not any(tensor.name.startswith(HEAD) for tensor in self.tensors)

    def is_of_vocabulary(self, tensor: Tensor) -> bool:
        """Whether a tensor has a row for each token."""
        return tensor.layer is None and tensor.shape[-1] == self.vocabulary and prod(tensor.shape) >= self.vocabulary


def read(path: Path) -> GgufMetadata:
    """Read a package's file.

    Raises:
        PackageError: it cannot be read, or makes no sense.
    """
    hint = "Fetch or copy the package again, or export the model again."
    try:
        return GgufMetadata.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise PackageError(f"the file is damaged: {in_words(error)}", where=str(path), hint=hint) from None
    except OSError as error:
        raise PackageError(f"the file cannot be read ({error.strerror})", where=str(path), hint=hint) from None


def in_words(error: ValidationError) -> str:
    """The first of the things that are wrong."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    what = first["msg"].removeprefix("Value error, ")
    return f"{field}: {what}" if field else what


def header(alignment: int, entries: Sequence[Entry], tensors: Sequence[Tensor]) -> tuple[bytes, tuple[int, ...], int]:
    """The bytes of a GGUF before its first tensor, where each tensor then begins in the file, and the file's size."""
    offsets, end = [], 0
    for tensor in tensors:
        offsets.append(end)
        end += -(-tensor.size // alignment) * alignment
    packed = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    packed += b"".join(entry.pack() for entry in entries)
    packed += b"".join(tensor.pack(offset) for tensor, offset in zip(tensors, offsets, strict=True))
    packed += bytes(-len(packed) % alignment)
    return packed, tuple(len(packed) + offset for offset in offsets), len(packed) + end


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
