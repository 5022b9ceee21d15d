"""`bench tui`: whether the screen keeps up, before a synthetic head with many nodes (no model runs, no PCs are there).

The app runs as for a person, in a process of its own, with a terminal in memory: all that is left out is the terminal
itself. A token's way is measured from the moment in which the head hands it to its socket to the moment in which the
app hands the codes that show it to its terminal.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

from agent.bench.report import Report, at_least, at_most, holds
from agent.bench.screen.screen_process import ScreenProcess
from agent.bench.screen.synthetic_head import SyntheticHead
from shards.progress import Progress

TOKEN_MS, CORES, KEY_MS, PASTE_SECONDS, BACK_SECONDS = 50.0, 1 / 3, 100.0, 2.0, 5.0
"""What is promised: of a token's way, of the processor, of a key, of a paste, of a head that is back."""

_AWAY_SECONDS = 3.0
_GONE, _BACK = "gone, trying again", "● connected"
"""What the screen says of the head."""
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ScreenEffort:
    """How much is measured."""

    nodes: int = 20
    rate: float = 100.0
    """Tokens a second."""
    seconds: float = 20.0
    """Of each load."""
    keys: int = 60
    characters: int = 200_000
    """Of the long conversation."""
    pasted: int = 1_000_000


EFFORT = ScreenEffort()
QUICK = ScreenEffort(seconds=5.0, keys=20)


def run(effort: ScreenEffort, progress: Progress) -> Report:
    """Run it.

    Raises:
        EdgeAgentError: the app or the head ended, or something never came to the screen.
    """
    report = Report("tui", {"head": "synthetic", "nodes": effort.nodes, "tokens per second": effort.rate})
    steps = (_stream, _fleet, _head_away, _long)
    with (
        SyntheticHead(effort.nodes, rate=effort.rate) as head,
        TemporaryDirectory(prefix="edge-agent-", ignore_cleanup_errors=True) as folder,
    ):
        for done, step in enumerate(steps):
            progress(step.__doc__ or "", done, len(steps))
            step(head, Path(folder), effort, report)
    progress("measured", len(steps), len(steps))
    return report


def _stream(head: SyntheticHead, folder: Path, effort: ScreenEffort, report: Report) -> None:
    """an answer comes, chat visible"""
    head.play(tokens=round(effort.rate * (effort.seconds + 3)))
    with ScreenProcess(head.url, folder / "stream") as screen:
        screen.do("shows", what="Synthetic", patience=_PATIENCE_SECONDS)
        screen.do("ask", question="Where does a token go?")
        load = screen.do("load", seconds=effort.seconds)
        drawn = screen.do("marks")["marks"]
    ways = _ways(head.get("/synthetic/marks"), drawn)
    report.results.append(_row("token to screen", ways))
    report.runs.append({"what": "chat, answer streaming", **load, "ms": ways})
    report.targets += [
        at_least("marks that came to the screen", len(ways), effort.rate * effort.seconds / 20),
        at_most(f"token to screen at {effort.rate:g} tokens/s and {effort.nodes} nodes, p95 ms", _p95(ways), TOKEN_MS),
        at_most("cores while an answer streams", load["cores"], CORES),
    ]


def _fleet(head: SyntheticHead, folder: Path, effort: ScreenEffort, report: Report) -> None:
    """the fleet is visible"""
    with ScreenProcess(head.url, folder / "fleet") as screen:
        screen.do("shows", what="Synthetic", patience=_PATIENCE_SECONDS)
        screen.do("press", keys=["f3"])
        screen.do("shows", what="pc-2", patience=_PATIENCE_SECONDS)
        load = screen.do("load", seconds=effort.seconds)
    report.runs.append({"what": "fleet", **load})
    report.targets.append(at_most(f"cores while {effort.nodes} nodes are shown", load["cores"], CORES))


def _head_away(head: SyntheticHead, folder: Path, effort: ScreenEffort, report: Report) -> None:
    """the head goes in mid-answer, and is back"""
    head.play(tokens=round(effort.rate * 60))
    with ScreenProcess(head.url, folder / "away") as screen:
        screen.do("shows", what="Synthetic", patience=_PATIENCE_SECONDS)
        screen.do("ask", question="Where does a token go?")
        screen.do("load", seconds=1.0)
        before = max(screen.do("marks")["marks"])
        head.kill()
        screen.do("shows", what=_GONE, patience=_PATIENCE_SECONDS)
        time.sleep(_AWAY_SECONDS)
        kept = f"q{before}q" in screen.do("screen")["text"]
        head.start()
        began = time.perf_counter()
        screen.do("press", keys=["f3"])
        screen.do("shows", what=_BACK, patience=_PATIENCE_SECONDS)
        screen.do("shows", what="pc-2", patience=_PATIENCE_SECONDS)  # as it does all the time, from before
        screen.do("press", keys=["f2"])
        kept = kept and f"q{before}q" in screen.do("screen")["text"]
        seconds = time.perf_counter() - began
        screen.do("ask", question="And now?")
    report.targets += [
        at_most("s until the screen is back with the head", seconds, BACK_SECONDS),
        holds("what had come of the answer stays", kept, "kept" if kept else "lost"),
    ]


def _long(head: SyntheticHead, folder: Path, effort: ScreenEffort, report: Report) -> None:
    """a long conversation, and a large paste"""
    with ScreenProcess(head.url, folder / "long", effort.characters) as screen:
        screen.do("shows", what="Synthetic", patience=_PATIENCE_SECONDS)
        opened = screen.do("open_first")["seconds"]
        keys = [1000 * seconds for seconds in screen.do("keys", count=effort.keys)["seconds"]]
        scrolls = [1000 * seconds for seconds in screen.do("scroll", count=effort.keys)["seconds"]]
        pasted = screen.do("paste", characters=effort.pasted)["seconds"]
        load = screen.do("load", seconds=1.0)
    report.results += [_row("key to screen", keys), _row("wheel to screen", scrolls)]
    report.runs.append({"what": "long conversation", "keys ms": keys, "wheel ms": scrolls, "after a paste": load})
    what = f"with {effort.characters:,} characters"
    report.targets += [
        at_most(f"s to open a conversation {what}", opened, PASTE_SECONDS),
        at_most(f"key to screen {what}, p95 ms", _p95(keys), KEY_MS),
        at_most(f"wheel to screen {what}, p95 ms", _p95(scrolls), KEY_MS),
        at_most(f"s until a key shows after a paste of {effort.pasted:,} characters", pasted, PASTE_SECONDS),
    ]


def _ways(sent: Mapping[str, float], drawn: Mapping[str, float]) -> list[float]:
    """Milliseconds of each mark on its way."""
    return [round(1000 * (drawn[mark] - sent[mark]), 2) for mark in sorted(sent) if mark in drawn]


def _p95(milliseconds: Sequence[float]) -> float:
    return quantiles(milliseconds, n=20)[-1]


def _row(what: str, milliseconds: Sequence[float]) -> dict[str, float | str | int]:
    return {
        "what": what,
        "number": len(milliseconds),
        "p50 ms": round(median(milliseconds), 1),
        "p95 ms": round(_p95(milliseconds), 1),
        "most ms": round(max(milliseconds), 1),
    }
