"""Prints who is in a fleet, and on which of them the model runs, whenever that changes.

    python3 watch.py URL

A line is JSON: `at` (seconds of the monotonic clock, which is one for all hosts of a lab), `nodes` (names, sorted),
`chains` (of each, the nodes of its stages) and `work` (what nodes do beside serving, by name). Needs nothing but the
standard library, so that it starts at once.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from typing import Any

_POLL_SECONDS = 0.1


def main(url: str) -> None:
    """Watch for ever."""
    before: dict[str, Any] | None = None
    while True:
        seen = look(url)
        if seen != before:
            print(json.dumps({"at": time.monotonic(), **seen}), flush=True)
            before = seen
        time.sleep(_POLL_SECONDS)


def look(url: str) -> dict[str, Any]:
    """The fleet now; nobody where there is no answer."""
    try:
        with urllib.request.urlopen(f"{url}/fleet", timeout=10) as answer:
            fleet = json.load(answer)
    except (OSError, ValueError):
        fleet = {}
    names = {node["key"]: node["name"] for node in fleet.get("nodes", ())}
    chains = [[stage["node"] for stage in chain["stages"]] for chain in fleet.get("chains", ())]
    return {
        "nodes": sorted(names.values()),
        "chains": [[names.get(key, key) for key in chain] for chain in chains],
        "work": {node["name"]: node["work"]["what"] for node in fleet.get("nodes", ()) if node["work"]},
    }


if __name__ == "__main__":
    main(sys.argv[1])
