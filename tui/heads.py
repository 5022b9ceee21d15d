"""What the screen can do beside talking to a head: find one, start one, know its key. Its starter gives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FoundHead:
    """A head that presents itself on this network. Nothing of it is proven."""

    name: str
    fleet: str = ""
    version: str = ""
    urls: tuple[str, ...] = ()
    """Where its API answers, best first; empty: to its own PC only."""


class StartedHead(Protocol):
    """A head that runs on this PC because the screen started it."""

    @property
    def url(self) -> str:
        """Where its API will answer."""

    @property
    def process(self) -> int:
        """Its process's number."""

    def is_running(self) -> bool:
        """Whether the process is there."""

    def log(self) -> list[str]:
        """The last lines of what it said, oldest first."""

    def stop(self) -> None:
        """End it, and wait until it has ended."""


class Starter(Protocol):
    """Starts heads. Its methods block: call them in a thread."""

    def packages(self) -> Sequence[Path]:
        """Model packages that are at hand."""

    def start(self, package: Path) -> StartedHead:
        """Serve a model package.

        Raises:
            EdgeAgentError: it cannot be started.
        """


def _nobody() -> Sequence[FoundHead]:
    return ()


def _no_key(url: str) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The PC and network around the screen. What is left out is not offered. All functions block."""

    usual_url: str = ""
    """Where a head of this PC listens unless told otherwise."""
    find: Callable[[], Sequence[FoundHead]] = _nobody
    """Looks for heads for some seconds."""
    key_for: Callable[[str], str | None] = _no_key
    """The key that is known for a URL; may raise EdgeAgentError."""
    starter: Starter | None = None
