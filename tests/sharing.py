"""Making once what all tests share, in whatever process they run."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent import paths
from tui.chat.files import locked

_STALE_SECONDS = 86_400


def cache_folder() -> Path:
    """Where tests keep what takes long to make."""
    return paths.cache_folder() / "tests"


@contextmanager
def one_at_a_time(what: str) -> Iterator[None]:
    """While one makes it, others that need it wait here; afterwards it is there."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f".{what}.lock"):
        yield


def made_once(kind: str, key: str, make: Callable[[Path], object]) -> Path:
    """A folder that is filled by whoever needs it first, and kept; `key` names all that its content depends on.

    Others of its kind are removed when a new one is made and they have not been used for long.
    """
    folder = cache_folder() / f"{kind}-{key}"
    with one_at_a_time(kind):
        if folder.exists():
            os.utime(folder)  # in use: another state of the code that makes its own must not take it away
        else:
            for old in cache_folder().glob(f"{kind}-*"):
                if time.time() - old.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(old, ignore_errors=True)
            made = folder.with_name(f".{folder.name}-{time.monotonic_ns()}")
            try:
                make(made)
                made.rename(folder)
            finally:
                shutil.rmtree(made, ignore_errors=True)
    return folder
