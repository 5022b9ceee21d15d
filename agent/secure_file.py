"""Files of their owner's alone: keys. Written whole or not at all, and not read if others can read or write them.

On Windows a user's configuration folder is closed to other users by the system; elsewhere the rights are checked here.
"""

from __future__ import annotations

import codecs
import os
import secrets
from pathlib import Path

from shards.errors import ConfigurationError

_LARGEST = 2**20


def create(path: Path, text: str) -> bool:
    """Make a file unless there is one; False if there was. Of several processes that try, one makes it, whole.

    Raises:
        ConfigurationError: it cannot be stored, or others can write in its folder.
    """
    try:
        partial = _write_beside(path, text)
        try:
            if os.name == "nt":
                partial.rename(path)  # which, there, does not replace
            else:
                path.hardlink_to(partial)
        except FileExistsError:
            return False
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_be_stored(path, error) from error
    return True


def replace(path: Path, text: str) -> None:
    """Make a file, or replace it as a whole.

    Raises:
        ConfigurationError: it cannot be stored, or others can write in its folder.
    """
    try:
        partial = _write_beside(path, text)
        try:
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_be_stored(path, error) from error


def read(path: Path) -> str | None:
    """What a file holds; None if there is none.

    Raises:
        ConfigurationError: it cannot be read, is not text or far too large, or others can read it.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_LARGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"the file cannot be read ({error.strerror})", where=str(path)) from error
    if os.name == "posix" and mode & 0o077:
        raise ConfigurationError(
            "other users have rights on this file, which holds a secret",
            where=str(path),
            hint=f"Close it with: chmod 600 {path}",
        )
    if len(data) > _LARGEST:
        raise ConfigurationError(f"the file is larger than {_LARGEST} bytes, which no key is", where=str(path))
    try:
        # with a mark in front: how editors and shells on Windows write
        return data.decode("utf-16" if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigurationError("the file is not text", where=str(path)) from None


def _write_beside(path: Path, text: str) -> Path:
    """A new file in the same folder that holds the text, on disk."""
    folder = path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.name == "posix" and folder.stat().st_mode & 0o022:
        raise ConfigurationError(
            "other users can write in this folder, which is for secrets",
            where=str(folder),
            hint=f"Close it with: chmod 700 {folder}",
        )
    partial = folder / f".{path.name}.{secrets.token_hex(4)}"
    try:
        # created without rights for anyone else, so there is no moment in which they could open it
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    return partial


def _cannot_be_stored(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"the file cannot be stored ({error.strerror})", where=str(path), hint="This user must be able to write there."
    )
