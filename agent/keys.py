"""The API key: in a file of its owner's alone, never on a command line, where every user of the PC could read it."""

from __future__ import annotations

import secrets
from pathlib import Path

from agent import paths, secure_file
from shards.errors import ConfigurationError

_FILE = "api-key"


def own_key() -> tuple[str, Path]:
    """This user's key and the file it is kept in; made on first use.

    Raises:
        ConfigurationError: the file cannot be read or written, or others can read it.
    """
    path = paths.config_folder() / _FILE
    secure_file.create(path, secrets.token_urlsafe(32) + "\n")
    return read_key(path), path


def found_key() -> str | None:
    """This user's key if there is one already; see `read_key`."""
    path = paths.config_folder() / _FILE
    return read_key(path) if path.exists() else None


def read_key(path: Path) -> str:
    """The key in a file.

    Raises:
        ConfigurationError: the file cannot be read, is empty, or others can read it.
    """
    text = secure_file.read(path)
    if text is None:
        raise ConfigurationError("there is no such file, which should hold the API key", where=str(path))
    key = text.strip()
    if not key or any(character.isspace() for character in key):
        raise ConfigurationError(
            "the API key file must hold one word, the key", where=str(path), hint="Or leave --api-key-file out."
        )
    return key
