"""A process that only announces itself and prints whom it sees.

Run with an announcement's fields as JSON, and the life of what it announces, in seconds.
"""

from __future__ import annotations

import json
import signal
import sys
import threading

from agent.fleet.discovery import discovery
from agent.fleet.discovery.discovery import Announcement, Discovery


def main(fields: str, life: str) -> None:
    discovery._LIFE_SECONDS = int(life)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with Discovery(Announcement(**json.loads(fields)), _show):
        ended.wait()
    print(json.dumps([thread.name for thread in threading.enumerate()]), flush=True)


def _show(others: tuple[Announcement, ...]) -> None:
    print(json.dumps([other.model_dump() for other in others]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
