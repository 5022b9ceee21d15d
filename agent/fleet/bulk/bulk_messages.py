"""What nodes say to each other over bulk sockets: a request, and its answer with or without bytes.

A request is one part, JSON; an answer is `[JSON]` when it refuses and `[JSON, bytes]` otherwise. A client may have
`WINDOW` requests unanswered at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shards.errors import WireError
from shards.manifest import PIECE_BYTES, Manifest
from shards.store import Piece

SLICE_BYTES = 256 * 2**10
"""Most bytes of an answer: on a network card a token's frame waits behind one slice, never behind a piece."""

MANIFEST_BYTES = 16 * 2**20
"""Largest manifest; those of models of a terabyte have less."""

WINDOW = 8
"""Requests a client may have unanswered."""

REQUEST_BYTES = 8192
"""Largest request; the socket of a server refuses larger ones."""

ANSWER_BYTES = MANIFEST_BYTES
"""Largest part of an answer; the socket of a client refuses larger ones."""

UNREADABLE = 0
"""Number of the answer to a request whose own number could not be read."""

PackageId = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class WantManifest(_Message):
    """The manifest of a package, as JSON."""

    kind: Literal["manifest"] = "manifest"
    package_id: PackageId


class WantHeld(_Message):
    """Which pieces of a package are there; the answer is read with `unpack_held`."""

    kind: Literal["held"] = "held"
    package_id: PackageId


class WantSlice(_Message):
    """Bytes [offset, offset + length) of a piece."""

    kind: Literal["slice"] = "slice"
    package_id: PackageId
    path: str = Field(max_length=1024)
    index: int = Field(ge=0, description="of the piece in its file")
    offset: int = Field(ge=0, lt=PIECE_BYTES, description="in the piece")
    length: int = Field(ge=1, le=SLICE_BYTES)


class WantEcho(_Message):
    """`size` bytes without meaning, at once: how long they take is a measure of the link."""

    kind: Literal["echo"] = "echo"
    size: int = Field(ge=0, le=SLICE_BYTES)


_T = TypeVar("_T", bound=BaseModel)

Want = WantManifest | WantHeld | WantSlice | WantEcho


class Request(_Message):
    """What is wanted, and the number the answer will have."""

    number: int = Field(gt=UNREADABLE, lt=2**63)
    want: Annotated[Want, Field(discriminator="kind")]


class Answer(_Message):
    """To the request of this number."""

    number: int = Field(ge=UNREADABLE, lt=2**63)
    refusal: str | None = Field(None, max_length=500, description="why there are no bytes")


def encode(message: Request | Answer) -> bytes:
    """A message as it travels."""
    return message.model_dump_json().encode()


def read_request(data: bytes) -> Request:
    """Read a request; raises WireError."""
    return _read(Request, data)


def read_answer(parts: Sequence[bytes]) -> tuple[Answer, bytes]:
    """Read an answer and its bytes (none if it refuses); raises WireError."""
    if not 1 <= len(parts) <= 2:
        raise WireError(f"an answer has {len(parts)} parts, where one or two were expected", where="bulk")
    answer = _read(Answer, parts[0])
    if (answer.refusal is None) != (len(parts) == 2):
        raise WireError("an answer has bytes beside a refusal, or neither", where="bulk")
    return answer, parts[1] if len(parts) == 2 else b""


def pack_held(manifest: Manifest, absent: Iterable[Piece]) -> bytes:
    """Which pieces are there: for each file of the manifest, in its order, a bit a piece, filled up to whole bytes.

    Bit 0 of a byte is the first of its eight pieces.
    """
    starts, size = _places(manifest)
    held = bytearray(size)
    for entry in manifest.files:
        for index in range(len(entry.pieces)):
            held[starts[entry.path] + index // 8] |= 1 << index % 8
    for piece in absent:
        held[starts[piece.path] + piece.index // 8] &= ~(1 << piece.index % 8)
    return bytes(held)


def unpack_held(manifest: Manifest, held: bytes, pieces: Iterable[Piece]) -> frozenset[Piece]:
    """Those of the pieces that are there.

    Raises:
        WireError: the bits are not those of this manifest.
    """
    starts, size = _places(manifest)
    if len(held) != size:
        raise WireError(f"{len(held)} bytes say which pieces are there, {size} were expected", where="bulk")
    return frozenset(p for p in pieces if held[starts[p.path] + p.index // 8] >> p.index % 8 & 1)


def _places(manifest: Manifest) -> tuple[dict[str, int], int]:
    """Where the bits of each file begin, in bytes, and how many bytes there are."""
    starts, size = {}, 0
    for entry in manifest.files:
        starts[entry.path] = size
        size += -(-len(entry.pieces) // 8)
    return starts, size


def _read(kind: type[_T], data: bytes) -> _T:
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise WireError(f"a bulk message is not as agreed: {field}: {first['msg']}"[:400], where="bulk") from None
