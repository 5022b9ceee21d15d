"""A draft that gives way to another one while it is asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from agent.fleet.head.draft_move import DraftMove
from agent.fleet.head.placed_draft import PlacedDraft
from pipeline.messages import Sampling
from pipeline.speculation.draft_model import DraftModel
from pipeline.speculation.draft_run import DraftRun
from pipeline.speculation.drafter import DrafterFacts, DraftText, Want
from pipeline.stages import LOOPBACK, Stage

SECONDS = 60.0
TEXT = DraftText("a", "", [1, 2, 3], (), Sampling(temperature=0.0))


class Model:
    """Works on each guess for ever."""

    def __init__(self, node: str) -> None:
        self.on_ready: Callable[[], None] = lambda: None
        self.node, self.off, self.is_closed = node, "", False

    def guess(self, text: DraftText, count: int, want: Want = "all", piece: int = 1) -> Sequence[int] | None:
        return None

    def end(self, key: str, client: str, tokens: Sequence[int]) -> None: ...

    def kind(self, key: str) -> str:
        return self.node

    def cost_ms(self, count: int) -> float:
        return 1.0

    @property
    def facts(self) -> DrafterFacts:
        return DrafterFacts("small", self.off or None, node=self.node)

    def close(self) -> None:
        self.is_closed = True


def test_the_new_one_is_asked_and_the_old_one_ends() -> None:
    old, new, told = Model("a"), Model("b"), list[str]()
    draft = PlacedDraft(5, old)
    draft.on_ready = lambda: told.append(draft.kind(""))
    assert (draft.node, draft.memory) == ("a", 5)
    assert draft.change(new)
    assert old.is_closed and not new.is_closed
    assert told == ["b"]  # the head asks again, and asks the new one
    assert (draft.node, draft.memory, draft.facts) == ("b", 5, new.facts)
    new.on_ready()
    assert told == ["b", "b"]
    new.off = "its process has ended"
    assert (draft.node, draft.memory) == ("b", 0)


def test_what_comes_after_the_end_is_closed() -> None:
    old, new = Model("a"), Model("b")
    draft = PlacedDraft(5, old)
    draft.close()
    assert not draft.change(new)
    assert old.is_closed and new.is_closed and draft.memory == 0


def test_guesses_that_are_waited_for_come_from_the_new_one(tiny_package: Path) -> None:
    def start() -> DraftModel:
        run = DraftRun(1024, 64, 8, mode="exact", tune=False, patience_ms=float("inf"))
        return DraftModel.start(tiny_package, 10**6, run)

    draft, ready = PlacedDraft(5, Model("a")), threading.Semaphore(0)
    draft.on_ready = ready.release

    def guesses() -> list[int]:
        while (found := draft.guess(TEXT, 4)) is None:
            assert ready.acquire(timeout=SECONDS)
        return list(found)

    assert draft.guess(TEXT, 4) is None
    assert draft.change(start())
    first = guesses()
    assert len(first) == 4 and draft.node == LOOPBACK
    assert draft.change(start())
    assert guesses() == first
    draft.end("a", "", [1, 2, 3])
    draft.close()


class Loading:
    """A stage that is loading until it is ended."""

    name, host, pid = "loading", "a", None

    def __init__(self) -> None:
        self.has_ended = threading.Event()

    def tell(self, message: object) -> None: ...

    def wait(self, seconds: float) -> bool:
        return self.has_ended.wait(seconds)

    def terminate(self) -> None:
        self.has_ended.set()

    def kill(self) -> None: ...


def load(stage: Stage, begun: threading.Event, seen: list[bool]) -> Callable[[DraftMove], None]:
    """What a move does."""

    def work(move: DraftMove) -> None:
        move.follow(stage)
        begun.set()
        assert stage.wait(SECONDS)
        seen.append(move.is_halted)

    return work


def test_a_move_that_is_halted_ends_what_it_loads() -> None:
    begun, seen = threading.Event(), list[bool]()
    move = DraftMove(load(Loading(), begun, seen))
    assert begun.wait(SECONDS) and move.is_on
    move.halt()
    assert not move.is_on and seen == [True]
    late = Loading()
    move.follow(late)
    assert late.has_ended.is_set()


def test_one_that_is_over_stays_so() -> None:
    stage, begun, seen = Loading(), threading.Event(), list[bool]()
    stage.terminate()
    move = DraftMove(load(stage, begun, seen))
    assert begun.wait(SECONDS)
    move._thread.join(SECONDS)
    move.halt()
    assert seen == [False]
