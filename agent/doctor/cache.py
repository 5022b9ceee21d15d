"""The folder of models and weights: room, rights, and whether what is in it is whole."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from agent import paths
from agent.doctor.check import Check
from shards.errors import PackageError
from shards.store import PackageStore

_TOPIC = "cache"
_LITTLE, _TOO_LITTLE = 10 * 10**9, 10**9
"""Bytes: about the weights of a large model's share, and of a small model."""
_LEFTOVERS = ("*/partial-*", "*/.*.exporting-*")
"""Folders of unfinished downloads and exports."""
_OLD_SECONDS = 3600.0
"""Nothing has changed in one for so long: nobody works on it."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A model package in the cache, whole or in part."""

    folder: Path
    pieces: int = 0
    total: int = 0
    problem: str | None = None
    """What is damaged."""


@dataclass(frozen=True, slots=True)
class Cache:
    """Facts."""

    folder: Path
    free: int
    problem: str | None = None
    """Why nothing can be written there."""
    copies: tuple[Copy, ...] = ()
    leftovers: tuple[tuple[Path, int], ...] = ()
    """Folders and their bytes."""


def check() -> list[Check]:
    """Look at this user's cache; bytes are not read again, which takes long (edge-agent inspect --check does)."""
    folder, problem = paths.cache_folder(), None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        problem = error.strerror or str(error)
    there = next(place for place in (folder, *folder.parents) if place.exists())
    copies = tuple(_copy(manifest.parent) for manifest in sorted(folder.glob("*/*/manifest.json")))
    old = time.time() - _OLD_SECONDS
    leftovers = tuple(
        (entry, _bytes(entry)) for each in _LEFTOVERS for entry in folder.glob(each) if entry.stat().st_mtime < old
    )
    return judge(Cache(folder, shutil.disk_usage(there).free, problem, copies, leftovers))


def judge(cache: Cache) -> list[Check]:
    """Whether models can be kept there, and those that are can be used."""
    if cache.problem is not None:
        step = "Make it this user's, or move it away: a new one is made."
        return [Check(_TOPIC, "fault", f"nothing can be written to {cache.folder} ({cache.problem})", step)]
    free = f"{cache.free / 1e9:.1f} GB free in {cache.folder}"
    if cache.free < _TOO_LITTLE:
        checks = [Check(_TOPIC, "fault", f"{free}: no model fits", "Free some space.")]
    elif cache.free < _LITTLE:
        checks = [Check(_TOPIC, "warning", f"{free}: large models will not fit", "Free some space.")]
    else:
        checks = [Check(_TOPIC, "ok", free)]
    for copy in cache.copies:
        name = f"model package {copy.folder.name}"
        if copy.problem is not None:
            step = f"It is fetched or made again when it is needed. To free its space now, remove {copy.folder}"
            checks.append(Check(_TOPIC, "warning", f"{name}: {copy.problem}", step))
        elif copy.pieces < copy.total:
            checks.append(Check(_TOPIC, "ok", f"{name}: {copy.pieces} of {copy.total} pieces, as stages needed them"))
    complete = sum(copy.problem is None and copy.pieces == copy.total for copy in cache.copies)
    checks.append(Check(_TOPIC, "ok", f"complete model packages: {complete}"))
    for folder, size in cache.leftovers:
        what = f"{size / 1e6:.0f} MB are left of something that was interrupted"
        checks.append(Check(_TOPIC, "warning", what, f"Remove {folder}"))
    return checks


def _copy(folder: Path) -> Copy:
    try:
        store = PackageStore(folder, read_only=True)
        pieces = store.all_pieces()
        missing = store.missing(pieces)
        for entry in store.manifest.files:  # of a partial copy too, every file is there in its full size
            path = folder / entry.path
            if not path.is_file() or path.stat().st_size != entry.size:
                store.check(store.pieces(entry.path))
    except PackageError as error:
        return Copy(folder, problem=f"{error.where}: {error.what}" if error.where else error.what)
    return Copy(folder, len(pieces) - len(missing), len(pieces))


def _bytes(folder: Path) -> int:
    total = 0
    for entry in folder.rglob("*"):
        try:
            total += entry.stat().st_size
        except OSError:
            continue
    return total
