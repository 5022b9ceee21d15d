"""The main states of the screen, as pictures in `snapshots/`. `pytest --update-pictures` keeps what is drawn now."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pictures
import pytest
from driving import ask, shown, until
from still_head import NOON, SECONDS, StillClient, StillHead, StillWatch
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

import tui.app
from agent.bench.screen.scene import Scene
from tui.app import EdgeAgentApp
from tui.chat import answering, conversation_view, state_view
from tui.client.errors import HeadError
from tui.client.head_client import End, StagePart, Timings
from tui.client.state import Event

SIZES = ((80, 24), (140, 45))
ANSWER = """\
A binary search halves what is left with **every** look, so it needs about `log2(n)` of them:

```python
def find(numbers: list[int], wanted: int) -> int | None:
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        if numbers[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if low < len(numbers) and numbers[low] == wanted else None
```

1. The list must be *sorted*.
2. `low` is the first place where `wanted` can be, `high` the first where it is too far.

| numbers | looks |
| --- | --- |
| 1 000 | 10 |
| 1 000 000 | 20 |

> A list that is searched once is not worth sorting: a plain loop is faster.

Text from a model stays text: [bold red]not bold[/], <b>nor this</b>, and \x1b[31mno colour\x1b[0m.
"""
END = End(
    finish_reason="stop",
    prompt_tokens=412,
    cached_tokens=380,
    completion_tokens=236,
    timings=Timings(
        first_token_ms=184.0,
        tokens_per_second=31.4,
        stages=(StagePart("pc-1", 9.8, 1.2), StagePart("pc-2", 11.6, 0.4), StagePart("pc-3", 8.7, 2.1)),
        wire=1.1,
        head=0.4,
    ),
)
LEFT = Event(time=NOON + SECONDS, what="pc-2 has left: no sign of life for 3 s")
BROKEN = HeadError(
    "pc-2 has left (no sign of life for 3 s), and this answer ran through it. Ask again: the model moves."
)

Steps = Callable[[EdgeAgentApp, Pilot[Any]], Awaitable[object]]


def scene(nodes: int, **more: Any) -> Scene:
    """A fleet at noon."""
    return Scene(nodes, users=min(nodes, 6), since=NOON, **more)


async def nothing(app: EdgeAgentApp, pilot: Pilot[Any]) -> None:
    """As it begins."""


async def question(app: EdgeAgentApp, pilot: Pilot[Any]) -> None:
    """Ask, and wait for the end."""
    await ask(pilot, "How does a binary search work?")
    await until(app, lambda text: "· first token" in text or "broke off" in text)


def keys(*names: str) -> Steps:
    """Press keys, each when the one before has had its effect."""

    async def press(app: EdgeAgentApp, pilot: Pilot[Any]) -> None:
        for name in names:
            await pilot.press(name)
            await _settled(app, pilot)

    return press


async def light(app: EdgeAgentApp, pilot: Pilot[Any]) -> None:
    """In a light theme, with an answer."""
    app.action_toggle_dark()
    await question(app, pilot)


async def light_fleet(app: EdgeAgentApp, pilot: Pilot[Any]) -> None:
    """In a light theme, the fleet."""
    app.action_toggle_dark()
    await pilot.press("f3")


def waiting() -> StillHead:
    """Somebody wants to be let in."""
    made = scene(3)
    made.knock("KQ7M-2XPA", "laptop-of-[bold]anna[/]")
    return StillHead(made)


def gone() -> StillHead:
    """It does not answer any more."""
    made = StillHead(scene(3), answer=[ANSWER, END])
    made.is_gone = True
    return made


STATES: dict[str, tuple[Callable[[], StillHead], Steps]] = {
    "chat-empty": (lambda: StillHead(scene(3)), nothing),
    "chat-answer": (lambda: StillHead(scene(3), answer=[ANSWER, END]), question),
    "chat-broken": (lambda: StillHead(scene(3), answer=[ANSWER[:200], LEFT, BROKEN]), question),
    "fleet-1": (lambda: StillHead(scene(1)), keys("f3")),
    "fleet-3": (lambda: StillHead(scene(3)), keys("f3")),
    "fleet-20": (lambda: StillHead(scene(20)), keys("f3")),
    "fleet-pending": (waiting, keys("f3")),
    "plan": (lambda: StillHead(scene(3)), keys("f3", "p")),
    "node": (lambda: StillHead(scene(3)), keys("f3", "enter")),
    "gone-chat": (gone, nothing),
    "gone-fleet": (gone, keys("f3")),
    "light-chat": (lambda: StillHead(scene(3), answer=[ANSWER, END]), light),
    "light-fleet": (lambda: StillHead(scene(3)), light_fleet),
    "help": (lambda: StillHead(scene(3)), keys("f1")),
}


@asynccontextmanager
async def _still(
    head: StillHead, folder: Path, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[EdgeAgentApp, Pilot[Any]]]:
    monkeypatch.setattr(tui.app, "HeadClient", lambda url, key=None: StillClient(head))
    monkeypatch.setattr(tui.app, "FleetWatch", lambda client, tell: StillWatch(head, tell))
    monkeypatch.setattr(time, "localtime", time.gmtime)
    monkeypatch.setattr(time, "time", lambda: NOON + SECONDS)
    monkeypatch.setattr(conversation_view, "strftime", lambda _: "12:02:00")
    monkeypatch.setattr(answering, "monotonic", lambda: 0.0)
    monkeypatch.setattr(state_view, "_PAUSE", 1e6)  # the head does not count tokens: it would in some pictures
    app = EdgeAgentApp(folder, "http://127.0.0.1:8114")
    app.animation_level = "none"
    monkeypatch.setattr(TextArea, "cursor_blink", False)
    monkeypatch.setattr(Input, "cursor_blink", False)
    async with app.run_test(size=size) as pilot:
        state = "gone" if head.is_gone else "connected"
        await until(app, lambda text: state in text and "Synthetic" in text and isinstance(app.focused, TextArea))
        yield app, pilot


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-pictures"))


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", STATES)
async def test_state(
    name: str, size: tuple[int, int], update: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, steps = STATES[name]
    async with _still(make(), tmp_path, size, monkeypatch) as (app, pilot):
        await steps(app, pilot)
        await _settled(app, pilot)
        pictures.check(f"{name}-{size[0]}x{size[1]}", app.export_screenshot(title="edge-agent"), update=update)


async def _settled(app: EdgeAgentApp, pilot: Pilot[Any]) -> None:
    """Wait until nothing is in the works, and nothing has changed for a while."""
    before, same = "", 0
    while same < 3:
        await pilot.pause(0.08)
        await pilot.pause()
        is_same = shown(app) == before and all(worker.is_finished for worker in app.workers)
        before, same = shown(app), same + 1 if is_same else 0
