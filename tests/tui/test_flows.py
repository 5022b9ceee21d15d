"""What people do with the screen, with a real head: SmolLM2 in two stage processes of this PC."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from driving import PATIENCE_SECONDS, ask, begin, until
from textual.pilot import Pilot

from tui.app import EdgeAgentApp
from tui.chat.conversation import Conversation
from tui.chat.store import ConversationStore

PROGRAM = Path(sys.executable).with_name("edge-agent")
SIZE = (140, 45)
LONG = "Tell a long story about a lighthouse and the people who live there."


@dataclass(frozen=True)
class Head:
    """A head that runs."""

    url: str

    def fleet(self) -> dict[str, Any]:
        """What it says of itself."""
        fleet: dict[str, Any] = httpx.get(f"{self.url}/fleet", timeout=PATIENCE_SECONDS, trust_env=False).json()
        return fleet

    def answers(self) -> int:
        """How many answers it has in the works."""
        return sum(len(chain["requests"]) for chain in self.fleet()["chains"])


@pytest.fixture(scope="module")
def head(smollm2_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    home = tmp_path_factory.mktemp("home")
    folders = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), "LOCALAPPDATA": str(home)}
    process = subprocess.Popen(
        [PROGRAM, "serve", smollm2_package, "--local-stages", "2", "--mode", "exact", "--port", "0", "--json"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, encoding="utf-8", env=os.environ | folders,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        said = ""
        while not said.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, f"the head ended: {said}"
            said += line
        yield Head(json.loads(said)["url"])
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_SECONDS)


@asynccontextmanager
async def running(head: Head, folder: Path) -> AsyncIterator[tuple[EdgeAgentApp, Pilot[Any]]]:
    """The app, connected."""
    app = EdgeAgentApp(folder, head.url)
    async with app.run_test(size=SIZE) as pilot:
        await until(app, "SmolLM2")
        yield app, pilot


async def idle(head: Head) -> None:
    """Wait until no answer is in the works."""
    end = time.monotonic() + PATIENCE_SECONDS
    while await asyncio.to_thread(head.answers):
        assert time.monotonic() < end, "answers are still in the works"
        await asyncio.sleep(0.02)


async def test_a_chat_is_streamed_and_says_where_its_time_went(head: Head, tmp_path: Path) -> None:
    async with running(head, tmp_path) as (app, pilot):
        await begin(app, pilot, "What is the capital of France?", 60)
        text = await until(app, "· first token")
        await idle(head)
    (kept,) = saved(tmp_path)
    (turn,) = kept.turns
    (answer,) = turn.answers
    assert turn.question == "What is the capital of France?"
    assert answer.state == "whole" and "Paris" in answer.text and answer.end is not None
    timings = answer.end.timings
    assert timings is not None and len(timings.stages) == 2 and timings.first_token_ms > 0
    assert "Paris" in text


async def test_an_answer_is_stopped_and_what_came_of_it_stays(head: Head, tmp_path: Path) -> None:
    async with running(head, tmp_path) as (app, pilot):
        await begin(app, pilot, LONG, 1000)
        await until(app, "pieces (escape stops)")
        await pilot.press("escape")
        await idle(head)
        text = await until(app, "stopped")
        await ask(pilot, "Shorter, please.")  # it goes on from here
        await until(app, "Shorter, please.")
        await pilot.press("escape")
        await idle(head)
    (kept,) = saved(tmp_path)
    answer = kept.turns[0].answer
    assert answer is not None and answer.state == "stopped" and answer.text
    assert answer.text.split()[0] in text


async def test_an_answer_is_given_again_and_the_first_one_stays(head: Head, tmp_path: Path) -> None:
    async with running(head, tmp_path) as (app, pilot):
        await begin(app, pilot, "Name three rivers.", 40)
        await until(app, "· first token")
        await idle(head)
        await pilot.press("ctrl+r")
        await until(app, "2 of 2")
        await until(app, "· first token")
        await idle(head)
    (kept,) = saved(tmp_path)
    assert len(kept.turns) == 1 and len(kept.turns[0].answers) == 2


async def test_somebody_elses_answer_is_cancelled_and_ends_in_one_clear_error(head: Head, tmp_path: Path) -> None:
    async with running(head, tmp_path) as (app, pilot):
        other = asyncio.create_task(stream(head))
        await until(app, lambda _: bool(head.answers()))
        await pilot.press("f3")
        await until(app, "decode")
        await pilot.press("c")
        await until(app, lambda _: app.screen.is_modal)
        await pilot.press("enter")
        last = await asyncio.wait_for(other, PATIENCE_SECONDS)
        await idle(head)
        await until(app, lambda text: "decode" not in text)
    assert "cancelled" in json.loads(last.removeprefix("data: "))["error"]["message"]


def saved(folder: Path) -> list[Conversation]:
    """The conversations on disk."""
    store = ConversationStore(folder / "conversations")
    return [store.load(entry.id) for entry in store.entries()]


async def stream(head: Head) -> str:
    """Somebody else's long answer; the last event of it."""
    body = {"messages": [{"role": "user", "content": LONG}], "stream": True, "temperature": 0, "max_tokens": 1000}
    last = ""
    async with (
        httpx.AsyncClient(trust_env=False, timeout=PATIENCE_SECONDS) as client,
        client.stream("POST", f"{head.url}/v1/chat/completions", json=body) as answer,
    ):
        async for line in answer.aiter_lines():
            last = line or last
    return last
