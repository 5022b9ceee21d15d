"""One head at a time for each fleet: two would undo what the other writes down of its members."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent import secure_file
from shards.errors import ConfigurationError

_FILE = "head.json"


class HeadNote(BaseModel):
    """What a head notes of itself for other processes of its user."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    process: int = Field(gt=0)
    since: float
    """When the process began, which tells it from a later one of the same number."""
    name: str = ""
    """Of the fleet."""
    fleet: str = ""
    """Its public key."""
    version: str = ""
    url: str = ""
    """Where its HTTP API answers on this PC."""

    @classmethod
    def of_this_process(cls, **said: str) -> Self:
        """The note of a head in this process; further fields are as given."""
        mine = psutil.Process()
        return cls(process=mine.pid, since=mine.create_time(), **said)


def running_head(folder: Path) -> HeadNote | None:
    """The head of this user that runs now, if there is one.

    Raises:
        ConfigurationError: its note cannot be read, or others can.
    """
    try:
        note = HeadNote.model_validate_json(secure_file.read(folder / _FILE) or "")
        same = abs(psutil.Process(note.process).create_time() - note.since) < 1
    except (ValidationError, psutil.Error):
        return None
    return note if same else None


class OneHead:
    """Notes in the settings folder that a head runs; a context manager.

    Args:
        folder: The settings folder.
        note: Of the head.

    Raises:
        ConfigurationError: one runs already.
    """

    def __init__(self, folder: Path, note: HeadNote) -> None:
        self._file = folder / _FILE
        self._note = note.model_dump_json()
        if not secure_file.create(self._file, self._note):
            other = running_head(folder)
            if other is not None and other.process != os.getpid():
                raise ConfigurationError(
                    f"a head of this fleet runs already, as process {other.process}",
                    where=str(self._file),
                    hint="End it, or serve with --local-stages, without a fleet.",
                )
            secure_file.replace(self._file, self._note)

    def close(self) -> None:
        """The head has ended."""
        with suppress(OSError):
            if self._file.read_text("utf-8") == self._note:
                self._file.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
