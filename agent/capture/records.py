"""What a recording consists of, on its way and in its file: msgpack arrays, one after another.

    header  ["edge-agent capture", version, model, package id, vocabulary, hidden size]
    text    ["text", number, prompt, sampling]
    row     ["row", number, position, input token, token, hidden state]
    end     ["end", rows, dropped, not finite, why]

A text comes before its rows, whose positions follow one another without a gap from the end of the prompt. Tokens are
int32, hidden states f32, both as raw little-endian bytes. A file without an end is not complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import msgpack
import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from pipeline import sampling_checks
from pipeline.messages import Sampling
from shards.errors import EdgeAgentError, RequestError

MAGIC = "edge-agent capture"
VERSION = 1

_MAX_NUMBER = 2**63 - 1
_MAX_HIDDEN = 2**20
_MAX_RECORD = 64 * 2**20
"""Bytes; a prompt of a million tokens has four million."""

_SAMPLING = TypeAdapter(Sampling)


class CaptureError(EdgeAgentError):
    """A recording cannot be made, or what should be one is none."""


@dataclass(frozen=True, slots=True)
class Header:
    """Of which model a recording is."""

    model: str
    package_id: str
    vocabulary: int
    hidden_size: int


@dataclass(frozen=True, slots=True)
class Text:
    """An answer begins to be recorded."""

    number: int
    prompt: tuple[int, ...]
    """All tokens before the first row's own."""
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Row:
    """A sampled token."""

    number: int
    """Of its text."""
    position: int
    """Its own; the row it was sampled from is one before."""
    read: int
    """The token of that row."""
    token: int
    hidden: NDArray[np.float32]
    """The residual after the last layer, before the final norm: [hidden size]."""


@dataclass(frozen=True, slots=True)
class End:
    """A recording is over."""

    rows: int
    dropped: int
    """Rows there was no room for, and those after them in the same text."""
    not_finite: int
    """Rows whose hidden state has an infinity or NaN, and those after them in the same text."""
    why: str


Record = Header | Text | Row | End


def encode(record: Record) -> bytes:
    """The bytes of a record."""
    packed: bytes = msgpack.packb(_fields(record))
    return packed


def _fields(record: Record) -> tuple[Any, ...]:
    match record:
        case Header(model, package_id, vocabulary, hidden_size):
            return MAGIC, VERSION, model, package_id, vocabulary, hidden_size
        case Text(number, prompt, sampling):
            return "text", number, np.array(prompt, "<i4").tobytes(), asdict(sampling)
        case Row(number, position, read, token, hidden):
            return "row", number, position, read, token, hidden.astype("<f4").tobytes()
        case End(rows, dropped, not_finite, why):
            return "end", rows, dropped, not_finite, why


class Decoder:
    """Makes records of bytes as they come, and checks them. Used by one thread.

    Args:
        where: Where the bytes come from, for errors.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._unpacker = msgpack.Unpacker(max_buffer_size=_MAX_RECORD, strict_map_key=False, use_list=True)
        self._next: dict[int, tuple[int, int]] = {}
        """Position and input token of the next row of each text."""
        self.header: Header | None = None
        self.end: End | None = None

    def feed(self, data: bytes) -> Iterator[Record]:
        """The records that are complete now.

        Raises:
            CaptureError: this is no recording, one of another version, or a damaged one.
        """
        try:
            self._unpacker.feed(data)
        except msgpack.BufferFull:
            self._refuse(f"a record of more than {_MAX_RECORD} bytes")
        while True:
            try:
                fields = self._unpacker.unpack()
            except msgpack.OutOfData:
                return
            except Exception as error:  # the unpacker has no common base for what it raises
                self._refuse(f"bytes that are no record ({error!r:.80})")
            yield self._read(fields)

    def _read(self, fields: Any) -> Record:
        if self.end is not None:
            self._refuse("a record after the end")
        if self.header is None:
            self.header = self._header(fields)
            return self.header
        match fields:
            case ["text", int(number), bytes(prompt), dict(sampling)] if 0 <= number <= _MAX_NUMBER:
                return self._text(number, prompt, sampling)
            case ["row", int(number), int(position), int(read), int(token), bytes(hidden)]:
                return self._row(number, position, read, token, hidden)
            case ["end", int(rows), int(dropped), int(not_finite), str(why)] if min(rows, dropped, not_finite) >= 0:
                self.end = End(rows, dropped, not_finite, why[:200])
                return self.end
        self._refuse("a record of no known kind")

    def _header(self, fields: Any) -> Header:
        match fields:
            case [str(magic), int(version), *_] if magic == MAGIC and version != VERSION:
                raise CaptureError(
                    f"the recording has version {version}, this edge-agent reads {VERSION}",
                    where=self._where,
                    hint="Record again with this version, or read it with the one that made it.",
                )
            case [str(magic), int(), str(model), str(package_id), int(vocabulary), int(hidden_size)] if (
                magic == MAGIC and 0 < vocabulary < 2**31 and 0 < hidden_size <= _MAX_HIDDEN
            ):
                return Header(model, package_id, vocabulary, hidden_size)
        raise CaptureError("this is no recording", where=self._where, hint="Make one with: edge-agent capture -o FILE")

    def _text(self, number: int, prompt: bytes, sampling: dict[Any, Any]) -> Text:
        assert self.header is not None
        if not prompt or len(prompt) % 4 or number in self._next:
            self._refuse(f"text {number}, without tokens or twice")
        ids = np.frombuffer(prompt, "<i4")
        if ids.min() < 0 or ids.max() >= self.header.vocabulary:
            self._refuse(f"text {number} with token ids outside 0..{self.header.vocabulary - 1}")
        try:
            read = _SAMPLING.validate_python(sampling)
            sampling_checks.validate(read, self.header.vocabulary)
        except (ValidationError, RequestError):
            self._refuse(f"text {number} with a sampling that makes no sense")
        self._next[number] = len(ids), int(ids[-1])
        return Text(number, tuple(ids.tolist()), read)

    def _row(self, number: int, position: int, read: int, token: int, hidden: bytes) -> Row:
        assert self.header is not None
        if self._next.get(number) != (position, read):
            self._refuse(f"a row of text {number} that does not follow the one before")
        if not 0 <= token < self.header.vocabulary:
            self._refuse(f"token {token}, outside 0..{self.header.vocabulary - 1}")
        if len(hidden) != 4 * self.header.hidden_size:
            self._refuse(f"a hidden state of {len(hidden)} bytes instead of {4 * self.header.hidden_size}")
        state = np.frombuffer(hidden, "<f4")
        if not np.isfinite(state).all():
            self._refuse(f"a hidden state that is not finite, of text {number} at position {position}")
        self._next[number] = position + 1, token
        return Row(number, position, read, token, state)

    def _refuse(self, what: str) -> NoReturn:
        raise CaptureError(f"the recording is damaged: it has {what}", where=self._where, hint="Record again.")
