"""A synthetic head as a process that is started, told what to play, and ended."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Self

import httpx

from shards.errors import StageError

_PATIENCE_SECONDS = 30.0


class SyntheticHead:
    """A context manager.

    Args:
        nodes: PCs of its fleet.
        users: Answers in the works beside those that are asked for.
        rate: Tokens a second of each answer.
    """

    def __init__(self, nodes: int = 20, users: int = 6, rate: float = 100.0) -> None:
        self._options = ("--nodes", str(nodes), "--users", str(users), "--rate", str(rate))
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        """Start it; where it was before, if it was.

        Raises:
            StageError: it does not start.
        """
        port = self.url.rpartition(":")[2] or "0"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agent.bench.screen.serve", "--port", port, *self._options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8",
        )  # fmt: skip
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise StageError("the synthetic head does not start", where=f"port {port}")
        self.url = json.loads(said)["url"]

    def kill(self) -> None:
        """Let it be gone from one moment to the next, as when its PC loses power."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def play(self, **what: Any) -> None:
        """Tell it what comes next; see `synthetic_api.Play`."""
        httpx.post(f"{self.url}/synthetic/play", json=what, trust_env=False).raise_for_status()

    def get(self, path: str) -> Any:
        """What it answers."""
        answer = httpx.get(f"{self.url}{path}", trust_env=False, timeout=_PATIENCE_SECONDS)
        answer.raise_for_status()
        return answer.json()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
