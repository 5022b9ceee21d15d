"""What the tests of speculation are made of: drafters that answer by rule, tables of step times, a sequence."""

from __future__ import annotations

from collections.abc import Sequence as Line

from pipeline.messages import Request, Sampling
from pipeline.pacing import Pace
from pipeline.sequence import Sequence
from pipeline.speculation.config import SpeculationConfig
from pipeline.speculation.drafter import MODEL, DrafterFacts, DraftText, Want
from pipeline.speculation.speculation import Speculation
from pipeline.step_times import StepTimes

FLAT = ((1, 10.0), (64, 11.0))
"""Rows cost next to nothing, as where the weights have to be read."""
STEEP = ((1, 10.0), (64, 640.0))
"""A row costs what it costs."""
CLIFF = ((1, 10.0), (4, 10.5), (5, 20.0), (8, 21.0))
ALONE, FULL = Pace(1, 1), Pace(2, 8)


class Echo:
    """Guesses the next numbers; what it does not have costs time, if it is told so."""

    def __init__(self, cost: float = 0.0, ready: bool = True) -> None:
        self.on_ready = lambda: None
        self.cost, self.ready = cost, ready
        self.asked: list[int] = []
        self.pieces: list[int] = []
        self.ended: list[str] = []

    def guess(self, text: DraftText, count: int, want: Want = "all", piece: int = 1) -> Line[int] | None:
        if want == "free" and self.cost:
            return ()
        self.asked.append(count)
        if want == "any":
            self.pieces.append(piece)
        start = len(text.tokens) + len(text.guesses)
        return range(start, start + count) if self.ready else None

    def end(self, key: str, client: str, tokens: Line[int]) -> None:
        self.ended.append(key)

    def kind(self, key: str) -> str:
        return MODEL

    def cost_ms(self, count: int) -> float:
        return self.cost * count

    @property
    def facts(self) -> DrafterFacts:
        return DrafterFacts("echo")

    def close(self) -> None: ...


class Silent(Echo):
    """Has no guess."""

    def guess(self, text: DraftText, count: int, want: Want = "all", piece: int = 1) -> Line[int] | None:
        return ()


class Both(Echo):
    """Has guesses that are free, of -1, besides the others."""

    def guess(self, text: DraftText, count: int, want: Want = "all", piece: int = 1) -> Line[int] | None:
        self.is_free = want == "free"
        return [-1] * count if want == "free" else super().guess(text, count)

    def kind(self, key: str) -> str:
        return "looked up" if self.is_free else MODEL


def speculation(
    table: tuple[tuple[int, float], ...] = FLAT,
    drafter: Echo | None = None,
    stages: int = 2,
    link_ms: float = 0.0,
    **config: object,
) -> Speculation:
    settings = SpeculationConfig(**config)  # type: ignore[arg-type]
    return Speculation(settings, drafter or Echo(), StepTimes(table, link_ms, stages))


def sequence(name: str = "a", max_tokens: int = 1000) -> Sequence:
    """One whose tokens are their positions, with the row of its last token to be sent."""
    made = Sequence(Request(name, (0, 1, 2, 3), Sampling(), max_tokens))
    made.sent = 3
    return made


def teach(told: Speculation, text: Sequence, hits: int, times: int = 40) -> None:
    """Of every guess so many tokens come true, the next one is wrong."""
    for _ in range(times):
        for depth in range(hits + 1):
            told._acceptance.learn(text.request.id, MODEL, depth, depth < hits)
