"""A model package on a node, whole or in part: what is there, what is missing, and whether the bytes are right.

A node fetches only the pieces its layers touch. Every file has its full logical size from the start (sparse), and a
sidecar `<file>.pieces` with one byte a piece says which have arrived and were verified. A file without a sidecar is
complete, as the exporter left it. One byte is written after the piece it stands for, so a kill at any moment loses
at most the pieces in flight.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shards import manifest as manifests
from shards import sparse
from shards.errors import CapacityError, PackageError
from shards.manifest import (
    DRAFT_VOCABULARY,
    GRAPH,
    LLAMACPP_METADATA,
    LLAMACPP_TENSORS,
    PIECE_BYTES,
    WEIGHTS,
    FileEntry,
    Manifest,
    Span,
)
from shards.progress import Progress, silent

if TYPE_CHECKING:
    from shards.runtime import EngineName

_AGAIN = "Fetch or copy the package again, or export the model again."


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """The unit that is fetched and verified: bytes [start, end) of one file."""

    path: str
    index: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes in the piece: 4 MiB, or less at the end of a file."""
        return self.end - self.start


class WrongBytesError(PackageError):
    """What arrived for a piece is not what the manifest says."""


class PackageStore:
    """Reads, fills and verifies the folder of one package. Threads may share it.

    Args:
        folder: Where it is.
        read_only: Whether to refuse all that would write there.

    Raises:
        PackageError: the folder holds no package this version can read.
    """

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        self.folder = folder
        self.manifest = manifests.read(folder)
        self.read_only = read_only
        self._lock = threading.Lock()

    @classmethod
    def create(cls, folder: Path, manifest: Manifest) -> PackageStore:
        """Start (or resume) an empty copy of a package, to be filled piece by piece.

        Raises:
            PackageError: the folder holds another package, or cannot be written.
        """
        if (folder / manifests.MANIFEST).exists():
            store = cls(folder)
            if store.manifest.package_id != manifest.package_id:
                raise PackageError(
                    "the folder holds another package", where=str(folder), hint="Choose an empty folder, or remove it."
                )
            return store
        try:
            for entry in manifest.files:
                _start_empty(folder / entry.path, entry)
            manifests.write(folder, manifest)
        except OSError as error:
            raise cannot_be_created(folder, error) from error
        return cls(folder)

    def pieces(self, path: str, spans: Iterable[Span] | None = None) -> tuple[Piece, ...]:
        """The pieces of a file that touch the given byte ranges; all of them without ranges."""
        entry = self.manifest.file(path)
        wanted: set[int] = set()
        for start, end in [(0, entry.size)] if spans is None else spans:
            if end > start:
                wanted.update(range(start // PIECE_BYTES, (min(end, entry.size) - 1) // PIECE_BYTES + 1))
        return tuple(_piece(entry, index) for index in sorted(wanted))

    def piece(self, path: str, index: int) -> Piece:
        """One piece of a file.

        Raises:
            PackageError: the package does not have it.
        """
        entry = self.manifest.file(path)
        if not 0 <= index < len(entry.pieces):
            raise PackageError(f"there is no piece {index}, the file has {len(entry.pieces)}", where=path)
        return _piece(entry, index)

    def pieces_of_stage(self, first: int, end: int, engine: EngineName = "openvino-paged") -> tuple[Piece, ...]:
        """What a stage with layers [first, end) needs: what describes the model, its ranges of the weights, a trimmed
        head's token ids.

        Raises:
            PackageError: the package does not have these layers, or nothing for this engine.
        """
        self.manifest.check_layers(first, end, where=self.folder)
        spans = self.manifest.spans_for(engine).of_stage(first, end)
        if engine == "llamacpp":
            return self.pieces(LLAMACPP_METADATA) + self.pieces(LLAMACPP_TENSORS, spans)
        needed = self.pieces(GRAPH) + self.pieces(WEIGHTS, spans)
        if self.manifest.facts.draft_vocabulary is not None and end == self.manifest.facts.layers:
            needed += self.pieces(DRAFT_VOCABULARY)
        return needed

    def all_pieces(self) -> tuple[Piece, ...]:
        """Every piece of every file."""
        return tuple(piece for entry in self.manifest.files for piece in self.pieces(entry.path))

    def missing(self, pieces: Iterable[Piece]) -> tuple[Piece, ...]:
        """Those of the pieces that are not here yet; a file that vanished or changed its size has none."""
        present: dict[str, bytes] = {}
        absent = []
        for piece in pieces:
            if piece.path not in present:
                present[piece.path] = self._present(self.manifest.file(piece.path))
            if not present[piece.path][piece.index]:
                absent.append(piece)
        return tuple(absent)

    def write(self, piece: Piece, data: bytes | memoryview) -> None:
        """Keep a piece that arrived, if it is what the manifest says.

        Raises:
            WrongBytesError: the bytes are not the right ones; nothing is written.
            PackageError: the folder cannot be written, or must not be.
            CapacityError: the disk is full.
        """
        self._check_writable()
        entry = self.manifest.file(piece.path)
        found = hashlib.sha256(data).hexdigest()
        if len(data) != piece.size or found != entry.pieces[piece.index]:
            raise WrongBytesError(
                f"what arrived for piece {piece.index} ({len(data)} bytes, SHA-256 {found[:12]}…) is not what the"
                f" manifest says ({piece.size} bytes, SHA-256 {entry.pieces[piece.index][:12]}…), so it was dropped",
                where=piece.path,
                hint="Fetch it again, from another node if it happens twice.",
            )
        target = self.folder / piece.path
        try:
            with self._lock:
                if _size(target) != entry.size:
                    _start_empty(target, entry)
            with target.open("r+b") as file:
                file.seek(piece.start)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # the data must be on disk before the sidecar says so
            with self._lock:
                _mark(target, piece.index)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise CapacityError(
                    f"the disk is full: {piece.size} bytes wanted, {shutil.disk_usage(self.folder).free} free",
                    where=str(target),
                    hint="Free some space; what has arrived so far is kept.",
                ) from error
            raise PackageError(f"the file cannot be written ({error})", where=str(target)) from error

    def read(self, piece: Piece, offset: int = 0, length: int = PIECE_BYTES) -> bytes:
        """The bytes of a piece, or bytes [offset, offset + length) of it, as they are on disk.

        Raises:
            PackageError: the file is gone or cannot be read.
        """
        path = self.folder / piece.path
        try:
            with path.open("rb") as file:
                file.seek(piece.start + offset)
                return file.read(min(length, piece.size - offset))
        except OSError as error:
            raise PackageError(f"the file cannot be read ({error})", where=str(path), hint=_AGAIN) from error

    def check(self, pieces: Iterable[Piece]) -> None:
        """Look, without reading the bytes, whether pieces are here; quick enough to do at every load.

        Raises:
            PackageError: a file is gone, has another size than the manifest says, or lacks pieces.
        """
        wanted = tuple(pieces)
        for path in dict.fromkeys(piece.path for piece in wanted):
            entry, target = self.manifest.file(path), self.folder / path
            size = _size(target)
            if size is None:
                raise PackageError("the file is gone", where=str(target), hint=_AGAIN)
            if size != entry.size:
                raise PackageError(
                    f"the file has {size} bytes, the manifest says {entry.size}", where=str(target), hint=_AGAIN
                )
        if absent := self.missing(wanted):
            raise PackageError(
                f"{len(absent)} of {len(wanted)} pieces are not here yet, the first at bytes"
                f" {absent[0].start}-{absent[0].end - 1}",
                where=str(self.folder / absent[0].path),
                hint="Fetch them from a node that has the package.",
            )

    def verify(self, pieces: Sequence[Piece], progress: Progress = silent) -> None:
        """Hash pieces again; `progress` is told in bytes.

        Raises:
            PackageError: as `check`, or bytes are not what the manifest says; names the file, piece and byte range.
        """
        self.check(pieces)
        if damaged := self._damaged(pieces, progress):
            first = damaged[0]
            others = f"; {len(damaged) - 1} more pieces are damaged" if len(damaged) > 1 else ""
            raise PackageError(
                f"bytes {first.start}-{first.end - 1} (piece {first.index}) are not what the manifest says{others}",
                where=str(self.folder / first.path),
                hint=_AGAIN,
            )

    def repair(self, pieces: Iterable[Piece], progress: Progress = silent) -> tuple[Piece, ...]:
        """Hash again those of the pieces that are here, and forget the damaged ones, which are returned.

        What is missing afterwards, these among it, can be fetched. `progress` is told in bytes.

        Raises:
            PackageError: a file cannot be read or written, or the package must not be written.
        """
        self._check_writable()
        wanted = tuple(pieces)
        absent = set(self.missing(wanted))
        damaged = self._damaged([piece for piece in wanted if piece not in absent], progress)
        for piece in damaged:
            target = self.folder / piece.path
            try:
                with self._lock:
                    _unmark(target, piece.index, len(self.manifest.file(piece.path).pieces))
            except OSError as error:
                raise PackageError(f"the file cannot be written ({error})", where=str(target)) from error
        return damaged

    def _damaged(self, pieces: Sequence[Piece], progress: Progress) -> tuple[Piece, ...]:
        """Those of the pieces whose bytes are not what the manifest says."""
        total, done, damaged = sum(piece.size for piece in pieces), 0, []
        for piece in pieces:
            if hashlib.sha256(self.read(piece)).hexdigest() != self.manifest.file(piece.path).pieces[piece.index]:
                damaged.append(piece)
            done += piece.size
            progress("verifying", done, total)
        return tuple(damaged)

    def _check_writable(self) -> None:
        if self.read_only:
            raise PackageError(
                "this package is only lent to the fleet, so it is not written to", where=str(self.folder), hint=_AGAIN
            )

    def _present(self, entry: FileEntry) -> bytes:
        """One byte a piece, 1 where it is here."""
        target, count = self.folder / entry.path, len(entry.pieces)
        if _size(target) != entry.size:
            return bytes(count)
        try:
            with self._lock:  # Windows lets nobody remove or replace a file while it is read
                return _sidecar(target).read_bytes().ljust(count, b"\0")
        except FileNotFoundError:
            return b"\1" * count


def cannot_be_created(folder: Path, error: OSError) -> PackageError:
    """The error that says that a package could not be begun in a folder."""
    return PackageError(
        f"the package cannot be created ({error.strerror or error})",
        where=str(folder),
        hint="This user must be able to write there, and the disk must have space; edge-agent doctor says more.",
    )


def _piece(entry: FileEntry, index: int) -> Piece:
    return Piece(entry.path, index, index * PIECE_BYTES, min((index + 1) * PIECE_BYTES, entry.size))


def _sidecar(target: Path) -> Path:
    return target.with_name(target.name + ".pieces")


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _start_empty(target: Path, entry: FileEntry) -> None:
    """Make a file of the full size with nothing in it: sidecar first, so that it is never taken for complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _sidecar(target).write_bytes(bytes(len(entry.pieces)))
    target.unlink(missing_ok=True)
    sparse.create(target, entry.size)


def _mark(target: Path, index: int) -> None:
    """Note that a piece is here; with the last one the sidecar goes."""
    sidecar = _sidecar(target)
    try:
        with sidecar.open("r+b") as file:
            file.seek(index)
            file.write(b"\1")
            file.seek(0)
            complete = 0 not in file.read()
    except FileNotFoundError:
        return  # complete already: the piece was written once more
    if complete:
        sidecar.unlink(missing_ok=True)


def _unmark(target: Path, index: int, count: int) -> None:
    """Note that a piece is not here (any more)."""
    sidecar = _sidecar(target)
    try:
        marks = bytearray(sidecar.read_bytes().ljust(count, b"\0"))
    except FileNotFoundError:
        marks = bytearray(b"\1" * count)
    marks[index] = 0
    partial = sidecar.with_name(sidecar.name + ".partial")
    partial.write_bytes(marks)
    partial.replace(sidecar)
