"""Files that are written whole or not at all, for their owner's eyes, by several processes in turn."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PARTIAL = ".part"
"""How a file's name ends while it is being written; what a crash leaves of one can be removed."""
_PAUSES = (0.01, 0.05, 0.2, 0.5)


def make_folder(folder: Path) -> None:
    """Make a folder that is its owner's alone; on Windows the rights of the profile's folder hold."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write or replace a file: after a crash it is the old one or the new one, on disk.

    Raises:
        OSError: It cannot be written; what was there is as before.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # else the new name may be lost with the power
        finally:
            os.close(folder)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Be the only one, of all threads and processes that lock this file, until the block ends."""
    with path.open("ab") as file:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
            try:
                yield
            finally:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
        else:
            import fcntl

            # some network file systems have no locks: there, what the caller compares must be enough
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


_BINARY: int = getattr(os, "O_BINARY", 0)


def _replace(partial: Path, path: Path) -> None:
    for pause in _PAUSES:
        try:
            partial.replace(path)
            return
        except PermissionError:
            if os.name != "nt":
                raise
            time.sleep(pause)  # a virus scanner or an indexer has it open for a moment
    partial.replace(path)
