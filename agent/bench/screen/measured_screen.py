"""The app, as it is measured: `python -m agent.bench.screen.measured_screen URL FOLDER`.

It runs as for a person, in a terminal in memory. Each line on stdin is a JSON object with the name of one of the
methods of `Measuring`, and what it wants; its answer is a line on stdout.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from textual import events
from textual.pilot import Pilot

from agent.bench.screen.marked_text import MARK, text
from agent.bench.screen.terminal import MemoryTerminal, plain
from tui.app import EdgeAgentApp
from tui.chat.conversation import Conversation
from tui.chat.sidebar import ConversationChosen, Sidebar
from tui.chat.store import ConversationStore

SIZE = (140, 45)
_LETTERS = "àáâãäåæçèéêëìíîïðñòóôõöøùúûüýþÿ"
"""Typed one after the other: what is on the screen has none of them."""
_TURN_CHARACTERS = 2000
_PAUSE_SECONDS = 0.06
"""Between two keys of somebody in a hurry."""


class Measuring:
    """What can be measured of a running app."""

    def __init__(self, pilot: Pilot[Any], terminal: MemoryTerminal, store: ConversationStore) -> None:
        self._pilot, self._terminal, self._store = pilot, terminal, store
        self._typed = 0

    async def ask(self, question: str) -> dict[str, Any]:
        """Type a question and send it; waits for the first mark."""
        await self._pilot.press("f2", *question, "enter")
        await self._terminal.until(lambda data: MARK.search(data) is not None)
        return {}

    async def load(self, seconds: float) -> dict[str, Any]:
        """What the process needs for some seconds."""
        cpu, began, characters = time.process_time(), time.perf_counter(), self._terminal.characters
        worst = await _longest_pause(seconds)
        passed = time.perf_counter() - began
        return {
            "cores": (time.process_time() - cpu) / passed,
            "written_per_second": (self._terminal.characters - characters) / passed,
            "longest_pause_ms": worst * 1000,
        }

    async def marks(self) -> dict[str, Any]:
        """When each mark was first drawn."""
        return {"marks": self._terminal.marks}

    async def press(self, keys: list[str]) -> dict[str, Any]:
        """Press keys."""
        await self._pilot.press(*keys)
        return {}

    async def shows(self, what: str, patience: float) -> dict[str, Any]:
        """Wait until a text is on the screen."""
        began = time.perf_counter()
        while what not in self._screen():
            if time.perf_counter() - began > patience:
                raise TimeoutError(f"{what!r} is not on the screen after {patience:g} s:\n{self._screen()}")
            await asyncio.sleep(0.02)
        return {"seconds": time.perf_counter() - began}

    async def screen(self) -> dict[str, Any]:
        """What is on the screen."""
        return {"text": self._screen()}

    async def open_first(self) -> dict[str, Any]:
        """Seconds from choosing the conversation that is there until some of it is on the screen."""
        (entry, *_) = await asyncio.to_thread(self._store.entries)
        drawn = asyncio.create_task(self._terminal.until(lambda data: MARK.search(data) is not None))
        began = time.perf_counter()
        self._pilot.app.query_one(Sidebar).post_message(ConversationChosen(entry.id))
        return {"seconds": await drawn - began}

    async def keys(self, count: int) -> dict[str, Any]:
        """Seconds from a key to the letter on the screen, of each of `count` letters."""
        seconds = []
        for _ in range(count):
            letter = _LETTERS[self._typed % len(_LETTERS)]
            self._typed += 1
            shows = partial(_has, letter)
            seconds.append(await self._terminal.answer_time(events.Key(letter, letter), shows))
            await asyncio.sleep(_PAUSE_SECONDS)
        return {"seconds": seconds}

    async def scroll(self, count: int) -> dict[str, Any]:
        """Seconds from a turn of the wheel over the conversation to other lines of it on the screen."""
        seconds = []
        for number in range(count):
            kind = events.MouseScrollUp if number < 2 * count // 3 else events.MouseScrollDown
            event = kind(None, *(SIZE[0] // 2, SIZE[1] // 3), 0, 0, 0, False, False, False)
            seconds.append(await self._terminal.answer_time(event, lambda data: MARK.search(data) is not None))
            await asyncio.sleep(_PAUSE_SECONDS)
        return {"seconds": seconds}

    async def paste(self, characters: int) -> dict[str, Any]:
        """Seconds from a paste until a key that follows it is on the screen."""
        pasted = text(characters)
        began = time.perf_counter()
        self._terminal.process_message(events.Paste(pasted))
        await self.keys(1)
        return {"seconds": time.perf_counter() - began}

    def _screen(self) -> str:
        lines = self._pilot.app.screen._compositor.render_strips()
        return "\n".join(strip.text for strip in lines)


def _has(letter: str, data: str) -> bool:
    return letter in plain(data)


async def _longest_pause(seconds: float) -> float:
    """The longest time in which the event loop did nothing else, in seconds."""
    end, worst, tick = time.perf_counter() + seconds, 0.0, 0.005
    while (before := time.perf_counter()) < end:
        await asyncio.sleep(tick)
        worst = max(worst, time.perf_counter() - before - tick)
    return worst


async def _long_conversation(store: ConversationStore, characters: int) -> None:
    """Keep one of so many characters."""
    conversation = Conversation(title="A long one")
    for turn in range(characters // _TURN_CHARACTERS):
        conversation.ask(f"Question {turn}: how does a token travel?", now=time.time())
        answer = conversation.begin_answer(now=time.time())
        answer.add(text(_TURN_CHARACTERS))
        answer.stop()
    await store.save(conversation)


async def main(url: str, folder: Path, characters: int) -> None:
    """Run the app until stdin ends."""
    store = ConversationStore(folder / "conversations")
    if characters:
        await _long_conversation(store, characters)
    app = EdgeAgentApp(folder, url)
    app.driver_class = MemoryTerminal
    out = sys.stdout
    commands: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(commands.put_nowait, line)
        loop.call_soon_threadsafe(commands.put_nowait, "")

    async def measure(pilot: Pilot[Any]) -> None:
        terminal = app._driver
        assert isinstance(terminal, MemoryTerminal)
        measuring = Measuring(pilot, terminal, store)
        threading.Thread(target=read, daemon=True).start()
        while line := await commands.get():
            command = json.loads(line)
            try:
                answer = await getattr(measuring, command.pop("do"))(**command)
            except TimeoutError as error:
                answer = {"error": str(error) or "it did not come"}
            print(json.dumps(answer), file=out, flush=True)
        app.exit()

    await app.run_async(size=SIZE, auto_pilot=measure)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
