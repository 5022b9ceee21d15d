"""Using the app as a person does: look at the screen, wait, type."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.pilot import Pilot

from tui.chat.chat_pane import ChatPane
from tui.chat.conversation import Conversation
from tui.chat.settings import Settings
from tui.chat.sidebar import ConversationChosen, Sidebar

PATIENCE_SECONDS = 60.0


def shown(app: App[Any]) -> str:
    """What is on the screen, as text."""
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())


async def until(app: App[Any], what: str | Callable[[str], bool], patience: float = PATIENCE_SECONDS) -> str:
    """Wait until a text, or what a function wants, is on the screen, which is returned."""
    end = time.monotonic() + patience
    while True:
        text = shown(app)
        if what in text if isinstance(what, str) else what(text):
            return text
        assert time.monotonic() < end, f"not within {patience:g} s: {what}; at last:\n{text}"
        await asyncio.sleep(0.02)


async def ask(pilot: Pilot[Any], question: str) -> None:
    """Type a question and send it."""
    await pilot.press(*question, "enter")


async def begin(app: App[Any], pilot: Pilot[Any], question: str, tokens: int) -> None:
    """Ask in a conversation that was kept before: greedily, so that it is always the same, for so many tokens."""
    settings = Settings(temperature=0.0, max_tokens=tokens)
    conversation = Conversation(title="Kept", settings=settings, draft=question)
    await app.query_one(ChatPane).store.save(conversation)
    app.query_one(Sidebar).post_message(ConversationChosen(conversation.id))
    await until(app, question)
    await pilot.press("enter")
