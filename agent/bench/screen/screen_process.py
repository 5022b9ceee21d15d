"""The measured app as a process that is told what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from shards.errors import EdgeAgentError


class ScreenError(EdgeAgentError):
    """The app did not do what was measured."""


class ScreenProcess:
    """A context manager.

    Args:
        url: The head it talks to.
        folder: Where it keeps conversations.
        characters: Length of a conversation that is there already; 0: none is.
    """

    def __init__(self, url: str, folder: Path, characters: int = 0) -> None:
        self._command = [sys.executable, "-m", "agent.bench.screen.measured_screen", url, str(folder), str(characters)]

    def do(self, action: str, **how: Any) -> dict[str, Any]:
        """Have it do something; see `measured_screen.Measuring`.

        Raises:
            ScreenError: it did not work out, or the app has ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": action, **how}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ScreenError(f"the app ended with code {self._process.wait()}", where=action)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ScreenError(answer["error"], where=action)
        return answer

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
