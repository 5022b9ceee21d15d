"""Where an export is made before anyone can see it: a hidden folder beside the package, gone whatever happens."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from shards import manifest as manifests
from shards.errors import CapacityError, ExportError, PackageError


@contextmanager
def workspace(target: Path) -> Iterator[Path]:
    """A new folder on the file system of `target`; removed at the end, after Ctrl-C and errors too.

    What a killed export left behind beside the same target is removed first.

    Raises:
        ExportError: the folder cannot be made.
    """
    prefix = f".{target.name}.exporting-"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for old in target.parent.glob(f"{prefix}*"):
            owner = old.name.removeprefix(prefix)
            if owner.isdigit() and not psutil.pid_exists(int(owner)):
                shutil.rmtree(old, ignore_errors=True)
        folder = target.parent / f"{prefix}{os.getpid()}"
        folder.mkdir()
    except OSError as error:
        raise ExportError(
            f"the package cannot be made there ({error.strerror or error})",
            where=str(target),
            hint="Choose another place with -o.",
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_target(target: Path, *, force: bool) -> None:
    """See that a package may be put at `target`: nothing there, an empty folder, or with `force` a package.

    Raises:
        ExportError: something else is there; it is never touched.
    """
    if not target.exists():
        return
    if not target.is_dir():
        raise ExportError("a file of this name is there", where=str(target), hint="Choose another name with -o.")
    if not any(target.iterdir()):
        return
    try:
        manifest = manifests.read(target)
    except PackageError as error:
        raise ExportError(
            "there is a folder here that is not empty and not a model package",
            where=str(target),
            hint="It is left as it is. Choose another name with -o, or remove it yourself.",
        ) from error
    if not force:
        raise ExportError(
            "there is a package here already", where=str(target), hint="Replace it with --force, or choose another -o."
        )
    listed = {manifests.MANIFEST} | {entry.path for entry in manifest.files}
    listed |= {f"{path}.pieces" for path in listed}
    files = {path.relative_to(target).as_posix() for path in target.rglob("*") if not path.is_dir()}
    if foreign := sorted(files - listed):
        raise ExportError(
            f"the folder also holds what is not part of the package: {', '.join(foreign[:3])}",
            where=str(target),
            hint="Move it away first; --force removes the whole folder.",
        )


def publish(built: Path, target: Path) -> None:
    """Move a finished folder to its place by renaming; a package that was there goes into the workspace.

    Raises:
        ExportError: something there is in use or cannot be replaced; it is then as it was.
    """
    old = built.with_name(f"{built.name}.replaced")
    try:
        if target.exists():
            target.rename(old)
        try:
            built.rename(target)
        except BaseException:  # Ctrl-C between the two is no reason to lose a package either
            if old.exists() and not target.exists():
                old.rename(target)
            raise
    except OSError as error:
        raise ExportError(
            f"the finished package cannot be put in place ({error.strerror or error})",
            where=str(target),
            hint="Stop what uses it (edge-agent serve?), or choose another -o.",
        ) from error


def check_space(folder: Path, wanted: int) -> None:
    """Refuse early what would end in a full disk.

    Raises:
        CapacityError: fewer than `wanted` bytes are free.
    """
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise CapacityError(
            f"the disk is too full: {wanted / 1e6:,.0f} MB wanted, {free / 1e6:,.0f} MB free",
            where=str(folder),
            hint="Free some space, or choose another place with -o.",
        )
