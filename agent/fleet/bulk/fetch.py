"""Fetches pieces of a package from several nodes at once."""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from agent.fleet.bulk.bulk_client import Source
from agent.fleet.bulk.bulk_messages import SLICE_BYTES, WantHeld, WantManifest, WantSlice, unpack_held
from agent.fleet.bulk.crew import Crew, Reply
from agent.fleet.bulk.pace import Meter, Pace
from agent.fleet.bulk.shares import Shares
from pipeline.link import KeyPair
from shards import manifest as manifests
from shards.errors import CapacityError, PackageError, WireError
from shards.manifest import Manifest
from shards.progress import Progress, silent
from shards.store import PackageStore, Piece, WrongBytesError

STALL_SECONDS = 10.0
"""A source that is silent for so long is asked no more."""

_UNANSWERED = 4
"""Slices asked of a source at a time: enough to fill a local network, little to stand before a token's frame."""

SMALL_SLICE_BYTES = 32 * 2**10
"""Asked for at a time while tokens flow: their frames wait for a slice that is on the wire."""

_UNWRITTEN = 4
"""Pieces in memory that have yet to be written."""

_POLL_SECONDS = 0.1
_REPORT_SECONDS = 0.2
_HINT = "See with `edge-agent status` whether a node that has the whole package is in the fleet."


class FetchCancelledError(PackageError):
    """The pieces are not wanted any more. Those that have arrived are kept."""


def fetch_manifest(
    package_id: str,
    sources: Sequence[Source],
    keys: KeyPair,
    *,
    cancel: threading.Event | None = None,
    stall_seconds: float = STALL_SECONDS,
) -> Manifest:
    """The manifest of a package: the first to come that has this id, so no source can pass another model off as it.

    Raises:
        PackageError: no source sends it; names them all.
        FetchCancelledError: `cancel` was set.
    """
    with Crew(sources, keys, stall_seconds) as crew:
        for source in crew.sources:
            crew.ask(source, WantManifest(package_id=package_id))
        while crew.owes:
            _check(cancel)
            for reply in crew.receive(_POLL_SECONDS):
                try:
                    manifest = _manifest(reply)
                except PackageError as error:
                    crew.drop(reply.source, error.what)
                    continue
                if manifest.package_id == package_id:
                    return manifest
                crew.drop(reply.source, "it sent the manifest of another package")
        raise PackageError(
            f"nobody sends the manifest ({crew.faults('silent')})", where=f"package {package_id[:12]}", hint=_HINT
        )


def fetch(
    store: PackageStore,
    pieces: Iterable[Piece],
    sources: Sequence[Source],
    keys: KeyPair,
    *,
    progress: Progress = silent,
    cancel: threading.Event | None = None,
    pace: Pace | None = None,
    stall_seconds: float = STALL_SECONDS,
) -> None:
    """Fetch those of the pieces that are missing. Each is verified, and from then on kept.

    A source that is silent, lies or breaks the rules is asked no more, and its pieces go to the others.

    Args:
        store: Where the pieces go.
        pieces: What is wanted.
        sources: Whom to ask, all at the same time.
        keys: Of this node.
        progress: Told in bytes; its text has the rate.
        cancel: Set to end it early.
        pace: Of what is received.
        stall_seconds: How long a source may be silent.

    Raises:
        CapacityError: the disk has not the space, or is full.
        PackageError: no source has a piece (names it and them), or the folder cannot be written.
        FetchCancelledError: `cancel` was set.
    """
    missing = tuple(dict.fromkeys(store.missing(pieces)))  # each once
    if not missing:
        return
    _check_space(store, sum(piece.size for piece in missing))
    with Crew(sources, keys, stall_seconds) as crew, ThreadPoolExecutor(1, "piece writer") as writer:
        work = _Fetch(store, missing, crew, writer, progress, pace or Pace())
        while work.advance():
            _check(cancel)
        if left := work.left:
            others = f" and {len(left) - 1} others" if len(left) > 1 else ""
            raise PackageError(
                f"nobody sends bytes {left[0].start}-{left[0].end - 1} (piece {left[0].index}){others}"
                f" ({crew.faults('does not have it')})",
                where=left[0].path,
                hint=_HINT,
            )


@dataclass(slots=True)
class _Download:
    """A piece on its way from a source."""

    piece: Piece
    data: bytearray
    asked: int = 0
    """Bytes asked for, from the piece's beginning."""
    arrived: dict[int, int] = field(default_factory=dict)
    """Offsets and lengths of the slices that are here."""

    @property
    def received(self) -> int:
        """Bytes that are here."""
        return sum(self.arrived.values())


class _Fetch:
    """A fetch in progress: asks for slices, puts pieces together, and has them verified and written by a thread."""

    def __init__(
        self, store: PackageStore, pieces: Sequence[Piece], crew: Crew, writer: Executor, progress: Progress, pace: Pace
    ) -> None:
        self._store, self._crew, self._writer, self._progress, self._pace = store, crew, writer, progress, pace
        self._package_id = store.manifest.package_id
        self._shares = Shares(pieces)
        self._downloads: dict[Source, dict[tuple[str, int], _Download]] = {}
        """By source, once it has said what it has, and by path and index."""
        self._writes: deque[tuple[Source, Piece, Future[None]]] = deque()
        self._total = sum(piece.size for piece in pieces)
        self._meter, self._reported = Meter(), 0.0
        for source in crew.sources:
            crew.ask(source, WantHeld(package_id=self._package_id))

    @property
    def left(self) -> Sequence[Piece]:
        """Pieces that are not here."""
        return sorted(self._shares.open)

    def advance(self) -> bool:
        """Go on for a moment; False: there is nothing more to do, or nobody to do it."""
        for source in self._downloads:
            self._ask(source)
        if self._shares.open and (self._crew.owes or any(self._downloads.values())):
            wait = self._pace.wait(time.monotonic())
            longest = wait or (_POLL_SECONDS if self._crew.owes else 0.0)
            for reply in self._crew.receive(min(longest, _POLL_SECONDS)):
                self._take(reply)
            self._finish_writes(_UNWRITTEN)
        elif self._writes:
            self._finish_writes(0)
        else:
            return False
        for source in self._downloads.keys() - self._crew.sources:
            del self._downloads[source]
            self._shares.drop(source)
        self._report()
        return True

    def _ask(self, source: Source) -> None:
        downloads = self._downloads[source]
        while self._crew.unanswered(source) < _UNANSWERED:
            download = next((d for d in downloads.values() if d.asked < d.piece.size), None) or self._begin(source)
            now = time.monotonic()
            if download is None or self._pace.wait(now):
                return
            piece, offset = download.piece, download.asked
            length = min(SMALL_SLICE_BYTES if self._pace.busy else SLICE_BYTES, piece.size - offset)
            self._crew.ask(
                source,
                WantSlice(
                    package_id=self._package_id, path=piece.path, index=piece.index, offset=offset, length=length
                ),
            )
            self._pace.spend(length, now)
            download.asked += length

    def _begin(self, source: Source) -> _Download | None:
        piece = self._shares.deal(source)
        if piece is None:
            return None
        download = _Download(piece, bytearray(piece.size))
        self._downloads[source][piece.path, piece.index] = download
        return download

    def _take(self, reply: Reply) -> None:
        match reply.want:
            case WantHeld():
                if reply.refusal is not None:
                    self._crew.drop(reply.source, reply.refusal)
                    return
                try:
                    has = unpack_held(self._store.manifest, reply.data, self._shares.open)
                except WireError as error:
                    self._crew.drop(reply.source, error.what)
                    return
                self._downloads[reply.source] = {}
                self._shares.add(reply.source, has)
            case WantSlice() as want:
                self._take_slice(reply, want)

    def _take_slice(self, reply: Reply, want: WantSlice) -> None:
        downloads = self._downloads[reply.source]
        download = downloads.get((want.path, want.index))
        if download is None:
            return  # another source was faster, or a slice of the piece was refused
        if reply.refusal is not None:
            del downloads[want.path, want.index]
            self._shares.lacks(reply.source, download.piece)
            return
        if len(reply.data) != want.length:
            self._crew.drop(reply.source, f"it sent {len(reply.data)} bytes where {want.length} were asked for")
            return
        download.data[want.offset : want.offset + want.length] = reply.data
        download.arrived[want.offset] = want.length
        if download.received == download.piece.size:
            for others in self._downloads.values():
                others.pop((want.path, want.index), None)
            self._shares.arrived(download.piece)
            writing = self._writer.submit(self._store.write, download.piece, memoryview(download.data))
            self._writes.append((reply.source, download.piece, writing))

    def _finish_writes(self, most: int) -> None:
        """Take note of the pieces that are written, and wait until no more than `most` are not."""
        while self._writes and (len(self._writes) > most or self._writes[0][2].done()):
            source, piece, writing = self._writes.popleft()
            try:
                writing.result()
            except WrongBytesError:
                self._shares.reopen(piece)
                self._crew.drop(source, f"it sent wrong bytes for piece {piece.index} of {piece.path}")

    def _report(self) -> None:
        now = time.monotonic()
        is_done = not self._shares.open and not self._writes
        if not is_done and (not self._shares.open or now - self._reported < _REPORT_SECONDS):
            return
        self._reported = now
        coming: dict[Piece, int] = {}
        for downloads in self._downloads.values():
            for download in downloads.values():
                coming[download.piece] = max(coming.get(download.piece, 0), download.received)
        missing = sum(piece.size - coming.get(piece, 0) for piece in self._shares.open)
        done = self._total - missing
        self._progress(f"fetching, {self._meter.rate(done, now) / 1e6:.1f} MB/s", done, self._total)


def _manifest(reply: Reply) -> Manifest:
    if reply.refusal is not None:
        raise PackageError(reply.refusal)
    return manifests.parse(reply.data, where=reply.source.name)


def _check_space(store: PackageStore, needed: int) -> None:
    try:
        free = shutil.disk_usage(store.folder).free
    except OSError as error:
        raise PackageError(f"the folder cannot be used ({error})", where=str(store.folder)) from None
    if needed > free:
        raise CapacityError(
            f"{needed:,} bytes have to be fetched, the disk has {free:,} free",
            where=str(store.folder),
            hint="Free some space; what has arrived so far is kept.",
        )


def _check(cancel: threading.Event | None) -> None:
    if cancel is not None and cancel.is_set():
        raise FetchCancelledError("the download was cancelled", hint="What has arrived is kept.")
