"""A recording in a file: written as it comes, read as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from agent.capture.records import CaptureError, Decoder, End, Header, Record, Row, Text, encode
from exporters.workspace import check_space
from pipeline.messages import Sampling
from shards.errors import CapacityError

_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class CapturedText:
    """A text that was answered while it was recorded."""

    prompt: tuple[int, ...]
    sampling: Sampling
    tokens: NDArray[np.int32]
    """What was sampled after the prompt, shape [rows]."""
    hidden: NDArray[np.float32]
    """What each was sampled from: residuals after the last layer, before the final norm, [rows, hidden size]."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A complete recording."""

    header: Header
    texts: tuple[CapturedText, ...]
    end: End

    @property
    def rows(self) -> int:
        """Sampled tokens in all texts."""
        return sum(len(text.tokens) for text in self.texts)

    @classmethod
    def read(cls, path: Path) -> Captured:
        """Read a file; all of it has to fit into memory.

        Raises:
            CaptureError: it cannot be read, is no recording, or damaged, or not complete.
        """
        decoder = Decoder(str(path))
        texts: dict[int, Text] = {}
        rows: dict[int, list[Row]] = {}
        try:
            with path.open("rb") as file:
                while data := file.read(_CHUNK):
                    for record in decoder.feed(data):
                        if isinstance(record, Text):
                            texts[record.number], rows[record.number] = record, []
                        elif isinstance(record, Row):
                            rows[record.number].append(record)
        except OSError as error:
            raise CaptureError(f"the file cannot be read ({error.strerror or error})", where=str(path)) from None
        header, end = decoder.header, decoder.end
        if header is None:
            raise CaptureError("this is no recording", where=str(path), hint="Make one with: edge-agent capture")
        found = sum(map(len, rows.values()))
        if end is None or end.rows != found:
            missing = "its end is not" if end is None else f"{end.rows} were recorded"
            raise CaptureError(
                f"the recording is not complete: {found} rows are there, {missing}",
                where=str(path),
                hint="Record again.",
            )
        return cls(header, tuple(_joined(texts[n], rows[n]) for n in texts if rows[n]), end)


def _joined(text: Text, rows: Iterable[Row]) -> CapturedText:
    rows = tuple(rows)
    tokens = np.array([row.token for row in rows], np.int32)
    return CapturedText(text.prompt, text.sampling, tokens, np.stack([row.hidden for row in rows]))


class CaptureWriter:
    """Writes a recording to FILE.partial, which becomes FILE when it is complete; a context manager.

    Args:
        path: The file; there must be none.
        max_bytes: The most that is to be written, which must be free.

    Raises:
        CaptureError: there is such a file, or none can be written there.
        CapacityError: the disk is too full.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path, self.partial = path, path.with_name(f"{path.name}.partial")
        if path.exists():
            raise CaptureError(
                "there is such a file already", where=str(path), hint="Choose another name, or remove it first."
            )
        if not path.parent.is_dir():
            raise CaptureError(f"there is no folder {path.parent}", where=str(path))
        check_space(path.parent, max_bytes)
        try:
            self._file: BinaryIO = self.partial.open("wb")
        except OSError as error:
            raise CaptureError(f"it cannot be written ({error.strerror or error})", where=str(self.partial)) from None
        self.rows = self.bytes = 0

    def write(self, record: Record) -> None:
        """Write a record.

        Raises:
            CapacityError: the disk is full.
        """
        data = encode(record)
        try:
            self._file.write(data)
        except OSError as error:
            raise CapacityError(f"it cannot be written ({error.strerror or error})", where=str(self.partial)) from None
        self.bytes += len(data)
        self.rows += isinstance(record, Row)

    def complete(self, end: End) -> None:
        """Write the end and give the file its name.

        Raises:
            CapacityError: the disk is full.
            CaptureError: a file of that name has appeared.
        """
        self.write(end)
        try:
            self._file.close()
            if self._path.exists():
                raise FileExistsError
            self.partial.rename(self._path)
        except OSError as error:
            what = "there is such a file by now" if isinstance(error, FileExistsError) else f"it failed ({error})"
            raise CaptureError(what, where=str(self._path), hint=f"The recording is in {self.partial}.") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file; one that is not complete stays as .partial, unless nothing has come."""
        with suppress(OSError):  # what could not be written has been told
            self._file.close()
        if not self.bytes:
            self.partial.unlink(missing_ok=True)
