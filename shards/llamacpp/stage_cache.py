"""The stage files on this PC: those of stages that run, and the last few that did. Any number of processes share them.

Who makes, takes or removes a file holds the folder's lock meanwhile. Who runs one holds it for as long: by a shared
lock of the file itself, which ends with its process, however that ends; on Windows by having it open, which is enough.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from shards.errors import CapacityError, PackageError
from shards.llamacpp import stage_file
from shards.llamacpp.stage_file import StageLayout
from shards.manifest import Span
from shards.progress import Progress, silent

KEPT = 2
"""Files that are kept though no stage uses them: what a restart or the last plan comes back to. Others take seconds to
make again, from bytes that are on this disk anyway."""

_LOCK = ".lock"


class StageFiles:
    """A folder of stage files.

    Args:
        folder: Where they are; made when it is needed.
        kept: How many stay that no stage uses, those used last.
    """

    def __init__(self, folder: Path, kept: int = KEPT) -> None:
        self._folder, self._kept = folder, kept

    @contextmanager
    def held(
        self, name: str, layout: StageLayout, tensors: Path, spans: Iterable[Span], progress: Progress = silent
    ) -> Iterator[Path]:
        """The file of a stage, which nobody here removes until the block ends; made if it is not there, or not whole.

        Args:
            name: Of the file.
            layout: What it holds.
            tensors: The package's file of tensors, whose bytes have been verified.
            spans: The bytes of it that were fetched for the stage.
            progress: Told in bytes while it is being made.

        Raises:
            PackageError: a tensor is not among the bytes that were fetched, or a file cannot be read or written.
            CapacityError: the disk is full.
        """
        path = self._folder / name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with _alone(self._folder / _LOCK) as is_alone:
                if stage_file.is_whole(layout, tensors, path):
                    os.utime(path)
                else:
                    self._make_room(path, layout.size, is_alone)
                    stage_file.write(layout, tensors, spans, path, progress)
                file = path.open("rb")
                _share(file)
                if is_alone:
                    self._remove_unused()
        except OSError as error:
            raise PackageError(f"the stage's file cannot be kept ({error})", where=str(path)) from error
        with file:
            yield path

    def _make_room(self, path: Path, size: int, is_alone: bool) -> None:
        """Have as much space as a file takes that is to be made."""
        path.unlink(missing_ok=True)  # damaged, or of another version
        if is_alone:
            for partial in self._folder.glob(f"*{stage_file.PARTIAL}"):  # its process was killed
                partial.unlink(missing_ok=True)
            if self._free() < size:
                self._remove_unused(size)
        if (free := self._free()) < size:
            raise CapacityError(
                f"the disk is full: the stage's file takes {size} bytes, {free} are free",
                where=str(path),
                hint="Free some space.",
            )

    def _remove_unused(self, size: int | None = None) -> None:
        """Remove files that no stage uses, the oldest first: all but those that are kept, or until there is space."""
        files = sorted(self._folder.glob("*.gguf"), key=_age)
        unused = [path for path in files if not _is_used(path)]
        for path in unused if size is not None else unused[: -self._kept or None]:
            if size is not None and self._free() >= size:
                break
            with suppress(OSError):  # on Windows: in use
                path.unlink()

    def _free(self) -> int:
        return shutil.disk_usage(self._folder).free


def _age(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


if sys.platform == "win32":
    import msvcrt

    @contextmanager
    def _alone(path: Path) -> Iterator[bool]:
        with path.open("ab") as file:
            while True:
                file.seek(0)
                with suppress(OSError):  # it gives up after ten seconds
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                    break
            try:
                yield True
            finally:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

    def _share(file: BinaryIO) -> None:
        """An open file cannot be removed."""

    def _is_used(path: Path) -> bool:
        """Removing it tells."""
        return False

else:
    import fcntl

    @contextmanager
    def _alone(path: Path) -> Iterator[bool]:
        """Wait to be the only one, of all threads and processes; False on file systems that have no locks."""
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                is_alone = True
            except OSError:
                is_alone = False
            yield is_alone

    def _share(file: BinaryIO) -> None:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_SH)

    def _is_used(path: Path) -> bool:
        try:
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        return False
