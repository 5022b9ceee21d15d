"""A session at the screen of the head's PC, kept as pictures: chat.svg and fleet.svg.

    python3 session.py FOLDER

Every character in them was drawn by the app that people use, and every token came from the model.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

from agent.keys import own_key
from tui.app import EdgeAgentApp
from tui.chat.conversation import Conversation
from tui.chat.settings import Settings
from tui.chat.sidebar import ConversationChosen, Sidebar
from tui.chat.store import ConversationStore

PROGRAM = Path(sys.executable).with_name("edge-agent")
URL = "http://127.0.0.1:8114"
SIZE = (120, 36)
QUESTION = "How do I reverse a string in Python?"
OTHERS = ("Tell a story about a lighthouse.", "Tell a story about a mountain.", "Tell a story about a river.")
_PATIENCE_SECONDS = 120.0


async def main(folder: Path) -> None:
    """Ask, then look at the fleet while others ask too."""
    data = Path.cwd() / "screen"
    conversation = Conversation(title="Strings", settings=Settings(temperature=0.0, max_tokens=62), draft=QUESTION)
    store = ConversationStore(data / "conversations")
    await store.save(conversation)
    app = EdgeAgentApp(data, URL, key=own_key()[0])
    async with app.run_test(size=SIZE) as pilot:
        await _until(app, lambda text: "connected" in text)
        app.query_one(Sidebar).post_message(ConversationChosen(conversation.id))
        await _until(app, lambda text: QUESTION[:30] in text)
        await pilot.press("enter")
        await _until(app, lambda text: "· first token" in text)
        await asyncio.sleep(1)
        _keep(app, folder / "chat.svg")
        others = [
            await asyncio.create_subprocess_exec(
                PROGRAM, "ask", question, "--max-tokens", "400", stdout=asyncio.subprocess.DEVNULL
            )
            for question in OTHERS
        ]
        await pilot.press("f3")
        await _until(app, lambda text: text.count("decode") == len(OTHERS))
        await asyncio.sleep(3)
        _keep(app, folder / "fleet.svg")
        for other in others:
            await other.wait()


def _keep(app: EdgeAgentApp, file: Path) -> None:
    file.write_text(app.export_screenshot(title="edge-agent"), "utf-8")


async def _until(app: EdgeAgentApp, reached: Callable[[str], bool]) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not reached(text := "\n".join(strip.text for strip in app.screen._compositor.render_strips())):
        if time.monotonic() > end:
            raise SystemExit(f"it did not come to this; at last the screen was\n{text}")
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
