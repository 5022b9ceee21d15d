"""What a PC remembers about itself and its fleets: JSON files of their owner's alone, checked when they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from agent import secure_file
from shards.errors import ConfigurationError


class Stored(BaseModel):
    """What a file holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")


_R = TypeVar("_R", bound=Stored)


def read(path: Path, kind: type[_R]) -> _R | None:
    """The record in a file; None if there is no file.

    Raises:
        ConfigurationError: the file cannot be read, others can read it, or it holds something else.
    """
    text = secure_file.read(path)
    if text is None:
        return None
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]  # the input may be a secret
        field = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(
            f"the file is damaged ({field + ': ' if field else ''}{first['msg']})",
            where=str(path),
            hint="Put back a copy of it; or move it away, and begin anew.",
        ) from None


def read_or_create(path: Path, kind: type[_R], make: Callable[[], _R]) -> _R:
    """The record in a file; a new one if there is no file. Processes that do this at the same time get the same.

    Raises:
        ConfigurationError: as `read`; or the file cannot be stored.
    """
    found = read(path, kind)
    if found is None:
        secure_file.create(path, _text(make()))
        found = read(path, kind)  # not what was made just now, if another process was quicker
    if found is None:
        raise ConfigurationError("the file cannot be created", where=str(path), hint="Is it a link to nowhere?")
    return found


def write(path: Path, record: Stored) -> None:
    """Store a record, whole or not at all.

    Raises:
        ConfigurationError: it cannot be stored.
    """
    secure_file.replace(path, _text(record))


def _text(record: Stored) -> str:
    return record.model_dump_json(indent=2) + "\n"
