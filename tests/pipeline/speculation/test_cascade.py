from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.messages import Sampling
from pipeline.speculation.cascade import Cascade
from pipeline.speculation.drafter import DrafterFacts, DraftText, Want
from pipeline.speculation.ngram import NgramDrafter


class Slow:
    """Works on each guess for a while."""

    def __init__(self) -> None:
        self.on_ready: Callable[[], None] = lambda: None
        self.asked: list[int] = []
        self.ended: list[str] = []
        self.answer: list[int] | None = None
        self.off: str | None = None
        self.closed = False

    def guess(self, text: DraftText, count: int, want: Want = "all", piece: int = 1) -> Sequence[int] | None:
        self.asked.append(len(text.tokens))
        return self.answer

    def end(self, key: str, client: str, tokens: Sequence[int]) -> None:
        self.ended.append(key)

    def kind(self, key: str) -> str:
        return "slow"

    def cost_ms(self, count: int) -> float:
        return 2.0 * count

    @property
    def facts(self) -> DrafterFacts:
        return DrafterFacts("slow", self.off, 1, 10, 2.5)

    def close(self) -> None:
        self.closed = True


def text(*tokens: int) -> DraftText:
    return DraftText("a", "", tokens, (), Sampling())


def test_what_takes_time_is_the_second_ones() -> None:
    slow = Slow()
    cascade = Cascade(NgramDrafter(), slow)
    assert cascade.guess(text(1, 2, 3, 1, 2, 3, 4), 2) is None
    slow.answer = [7, 8]
    assert cascade.guess(text(1, 2, 3, 1, 2, 3, 4), 2) == [7, 8]
    assert slow.asked == [7, 7]


def test_what_is_free_is_the_first_ones() -> None:
    slow = Slow()
    slow.answer = [7]
    cascade = Cascade(NgramDrafter(), slow)
    assert cascade.cost_ms(3) == 6.0
    assert list(cascade.guess(text(9), 2, want="free") or ()) == []
    assert slow.asked == []
    assert list(cascade.guess(text(9), 2) or ()) == [7]
    assert cascade.kind("a") == "slow"
    cascade.end("a", "", ())
    assert list(cascade.guess(text(1, 2, 3, 4, 1, 2, 3, 4), 2, want="free") or ()) == [1, 2]
    assert cascade.kind("a") == "n-gram 3"  # four to seven tokens


def test_both_are_told_and_closed() -> None:
    slow = Slow()
    cascade = Cascade(NgramDrafter(), slow)
    heard: list[None] = []
    cascade.on_ready = lambda: heard.append(None)
    slow.on_ready()
    cascade.on_ready()
    assert len(heard) == 2
    cascade.end("a", "", [1, 2, 3])
    assert slow.ended == ["a"]
    assert cascade.facts == DrafterFacts("n-gram, then slow", None, 1, 14, 2.5)
    slow.off = "broken"
    assert cascade.facts.off == "slow: broken (n-gram goes on)"
    cascade.close()
    assert slow.closed
