"""The process of a synthetic head: `python -m agent.bench.screen.serve`. It ends when its stdin does."""

from __future__ import annotations

import argparse
import json
import sys
import time

from agent import server
from agent.bench.screen.scene import Scene
from agent.bench.screen.synthetic_api import SyntheticApi


def main() -> None:
    """Serve until stdin ends; the first line on stdout says where, as JSON."""
    parser = argparse.ArgumentParser(description="A head that has no model and no PCs, to try the screen with.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--users", type=int, default=6)
    parser.add_argument("--rate", type=float, default=100.0, help="tokens a second of each answer")
    given = parser.parse_args()
    api = SyntheticApi(Scene(given.nodes, given.users, since=time.time()), given.rate)
    bound = server.bind(port=given.port)
    running = server.Server(api.app, bound, api.end_answers)
    print(json.dumps({"url": server.url_of(bound)}), flush=True)
    sys.stdin.read()
    running.close()


if __name__ == "__main__":
    main()
