"""One head at a time for each fleet: two would undo what the other writes down of its members."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from agent import secure_file
from shards.errors import ConfigurationError

_FILE = "head.json"


class OneHead:
    """Notes in the settings folder that a head runs; a context manager.

    Raises:
        ConfigurationError: one runs already.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / _FILE
        mine = psutil.Process()
        self._note = json.dumps({"process": mine.pid, "since": mine.create_time()})
        if not secure_file.create(self._file, self._note):
            found = secure_file.read(self._file) or ""
            if (pid := _running(found)) is not None:
                raise ConfigurationError(
                    f"a head of this fleet runs already, as process {pid}",
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


def _running(note: str) -> int | None:
    """The number of the process of a note, if that still runs and is not this one."""
    try:
        said = json.loads(note)
        process = psutil.Process(said["process"])
        same = abs(process.create_time() - said["since"]) < 1
    except (ValueError, KeyError, TypeError, psutil.Error):
        return None
    return process.pid if same and process.pid != os.getpid() else None
