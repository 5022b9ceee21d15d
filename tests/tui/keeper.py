"""The keeper of a fleet at the head's screen: lets `pc1` in, asks for a long answer, and sees it break off.

    python keeper.py

It runs on the head's host, where nobody else can see its HTTP API. Each thing that it has seen is a line of JSON, with
the time (seconds of the monotonic clock, one for all hosts of a lab) and the screen.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from pathlib import Path

from driving import begin, shown, until

from agent.keys import own_key
from tui.app import EdgeAgentApp

URL = "http://127.0.0.1:8114"
PATIENCE_SECONDS = 180.0


def pieces_of(screen: str) -> int:
    """How much of the answer that is being made has come."""
    found = re.search(r"([\d,]+) pieces? \(", screen)
    return int(found[1].replace(",", "")) if found else 0


async def main() -> None:
    """From a stranger that knocks to a node that is lost."""
    app = EdgeAgentApp(Path.cwd() / "screen", URL, key=own_key()[0])

    def saw(what: str) -> None:
        print(json.dumps({"saw": what, "at": time.monotonic(), "screen": shown(app)}), flush=True, file=sys.__stdout__)

    async with app.run_test(size=(140, 45)) as pilot:
        await until(app, "connected")
        await pilot.press("f3")
        await until(app, lambda text: "pc1" in text and "waits" in text, PATIENCE_SECONDS)
        saw("pc1 waits")
        await pilot.press("a")
        await until(app, lambda _: app.screen.is_modal)
        await pilot.press("enter")  # yes, the code is that of the other screen
        await until(app, "pc1 has joined", PATIENCE_SECONDS)
        saw("pc1 has joined")
        await until(app, lambda text: "● pc0" in text and "● pc1" in text, PATIENCE_SECONDS)
        saw("both serve")
        await pilot.press("f2")
        await begin(app, pilot, "Tell a long story about a lighthouse and the people who live there.", 1000)
        await until(app, lambda text: pieces_of(text) >= 20, PATIENCE_SECONDS)  # some words, on any PC
        saw("an answer")
        await pilot.press("f3")
        await until(app, lambda text: "● pc1" not in text and "● pc0" not in text, PATIENCE_SECONDS)
        saw("pc1 is gone from the map")
        await pilot.press("f2")
        await until(app, "broke off", PATIENCE_SECONDS)
        saw("the answer has broken off")


if __name__ == "__main__":
    asyncio.run(main())
