"""The API key: in a file of its owner's alone, never on a command line, where every user of the PC could read it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from agent import paths
from shards.errors import ConfigurationError

_FILE = "api-key"


def own_key() -> tuple[str, Path]:
    """This user's key and the file it is kept in; made on first use.

    Raises:
        ConfigurationError: the file cannot be read or written, or others can read it.
    """
    path = paths.config_folder() / _FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # created without rights for anyone else, so there is no moment in which they could open it
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigurationError(
            f"the API key cannot be stored ({error.strerror})", where=str(path), hint="Give one with --api-key-file."
        ) from error
    return read_key(path), path


def read_key(path: Path) -> str:
    """The key in a file.

    Raises:
        ConfigurationError: the file cannot be read, is empty, or others can read it.
    """
    try:
        key = path.read_text("utf-8").strip()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigurationError(f"the API key file cannot be read ({reason})", where=str(path)) from error
    if os.name == "posix" and mode & 0o077:
        raise ConfigurationError(
            "other users can read the API key file", where=str(path), hint=f"Close it with: chmod 600 {path}"
        )
    if not key or any(character.isspace() for character in key):
        raise ConfigurationError(
            "the API key file must hold one word, the key", where=str(path), hint="Or leave --api-key-file out."
        )
    return key
