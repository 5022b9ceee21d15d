"""Heads on this network, for a screen: found in a process of its own, as that loads much that a screen doesn't need."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from shards.errors import StageError

if TYPE_CHECKING:
    from tui.heads import FoundHead

SECONDS = 2.0
_START_SECONDS = 20.0
"""Longest that the process may take beside looking."""


def look_around(seconds: float = SECONDS) -> tuple[FoundHead, ...]:
    """Heads that present themselves, those whose API can be reached first.

    Raises:
        StageError: this PC cannot look.
    """
    from tui.heads import FoundHead

    command = [sys.executable, "-X", "utf8", "-P", "-m", "agent.look_around", str(seconds)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds + _START_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _cannot_look(str(error)) from error
    try:
        heads = [FoundHead(**{**head, "urls": tuple(head["urls"])}) for head in json.loads(done.stdout)]
    except (ValueError, TypeError, KeyError) as error:
        raise _cannot_look(done.stderr.strip().rpartition("\n")[2]) from error
    return tuple(sorted(heads, key=lambda head: not head.urls))


def _cannot_look(why: str) -> StageError:
    return StageError(f"heads cannot be looked for ({why})", where="mDNS", hint="Give its address: --url URL.")


def _main() -> None:
    from agent.fleet.discovery.heads import find_heads

    print(json.dumps([asdict(head) for head in find_heads(float(sys.argv[1]))]))


if __name__ == "__main__":
    _main()
