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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shards import manifest as manifests
from shards import sparse
from shards.errors import CapacityError, PackageError
from shards.manifest import GRAPH, PIECE_BYTES, WEIGHTS, FileEntry, Manifest, Span
from shards.progress import Progress, silent

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


class PackageStore:
    """Reads, fills and verifies the folder of one package.

    Raises:
        PackageError: the folder holds no package this version can read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = manifests.read(folder)

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
            raise PackageError(f"the package cannot be created ({error})", where=str(folder)) from error
        return cls(folder)

    def pieces(self, path: str, spans: Iterable[Span] | None = None) -> tuple[Piece, ...]:
        """The pieces of a file that touch the given byte ranges; all of them without ranges."""
        entry = self.manifest.file(path)
        wanted: set[int] = set()
        for start, end in [(0, entry.size)] if spans is None else spans:
            if end > start:
                wanted.update(range(start // PIECE_BYTES, (min(end, entry.size) - 1) // PIECE_BYTES + 1))
        return tuple(
            Piece(path, index, index * PIECE_BYTES, min((index + 1) * PIECE_BYTES, entry.size))
            for index in sorted(wanted)
        )

    def pieces_of_stage(self, first: int, end: int) -> tuple[Piece, ...]:
        """What a stage with layers [first, end) needs: the graph, and its ranges of the weights.

        Raises:
            PackageError: the package does not have these layers.
        """
        self.manifest.check_layers(first, end, where=self.folder)
        return self.pieces(GRAPH) + self.pieces(WEIGHTS, self.manifest.spans.of_stage(first, end))

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
            PackageError: the bytes are not the right ones (nothing is written), or the folder cannot be written.
            CapacityError: the disk is full.
        """
        entry = self.manifest.file(piece.path)
        found = hashlib.sha256(data).hexdigest()
        if len(data) != piece.size or found != entry.pieces[piece.index]:
            raise PackageError(
                f"what arrived for piece {piece.index} ({len(data)} bytes, SHA-256 {found[:12]}…) is not what the"
                f" manifest says ({piece.size} bytes, SHA-256 {entry.pieces[piece.index][:12]}…), so it was dropped",
                where=piece.path,
                hint="Fetch it again, from another node if it happens twice.",
            )
        target = self.folder / piece.path
        try:
            if _size(target) != entry.size:
                _start_empty(target, entry)
            with target.open("r+b") as file:
                file.seek(piece.start)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # the data must be on disk before the sidecar says so
            _mark(target, piece.index)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise CapacityError(
                    f"the disk is full: {piece.size} bytes wanted, {shutil.disk_usage(self.folder).free} free",
                    where=str(target),
                    hint="Free some space; what has arrived so far is kept.",
                ) from error
            raise PackageError(f"the file cannot be written ({error})", where=str(target)) from error

    def read(self, piece: Piece) -> bytes:
        """The bytes of a piece as they are on disk.

        Raises:
            PackageError: the file is gone or cannot be read.
        """
        path = self.folder / piece.path
        try:
            with path.open("rb") as file:
                file.seek(piece.start)
                return file.read(piece.size)
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
        total, done, damaged = sum(piece.size for piece in pieces), 0, []
        for piece in pieces:
            if hashlib.sha256(self.read(piece)).hexdigest() != self.manifest.file(piece.path).pieces[piece.index]:
                damaged.append(piece)
            done += piece.size
            progress("verifying", done, total)
        if damaged:
            first = damaged[0]
            others = f"; {len(damaged) - 1} more pieces are damaged" if len(damaged) > 1 else ""
            raise PackageError(
                f"bytes {first.start}-{first.end - 1} (piece {first.index}) are not what the manifest says{others}",
                where=str(self.folder / first.path),
                hint=_AGAIN,
            )

    def _present(self, entry: FileEntry) -> bytes:
        """One byte a piece, 1 where it is here."""
        target, count = self.folder / entry.path, len(entry.pieces)
        if _size(target) != entry.size:
            return bytes(count)
        try:
            return _sidecar(target).read_bytes().ljust(count, b"\0")
        except FileNotFoundError:
            return b"\1" * count


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
