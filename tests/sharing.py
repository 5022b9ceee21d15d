"""Making once what all tests share, in whatever process they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent import paths
from tui.chat.files import locked


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
