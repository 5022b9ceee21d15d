"""Which node of a fleet carries the draft of a chain. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.planning.amounts import amount

AUTO, HEAD_PC = "auto", "head"
"""What may be asked for, beside a node's name or key: an idle node if there is one that is of use, or the head's PC."""

_MOST_STEPS = 1.0
"""The round trip to a draft, in steps of the chain it guesses for, beyond which it is not asked for by itself.

Guesses come a round trip later than from the head's PC. In that time a chain without any guesses makes as many tokens
as steps: here one, so one right guess of each round would go into the way alone. And with two steps on their way, as a
draft has them, every further guess takes half of the round trip."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node, as it may carry a draft."""

    key: str
    name: str
    room: int
    """Bytes that are left for a draft."""
    round_trip_ms: float
    """From the head, of a small message; 0 on its own PC."""
    drafts: int = 0
    """That it carries already."""
    problem: str | None = None
    """Why it cannot carry one, however small."""

    def obstacle(self, needed: int) -> str | None:
        """Why it cannot carry a draft of so many bytes; None if it can."""
        if self.problem is None and self.room < needed:
            return f"the draft takes {amount(needed)}, and it has room for {amount(max(0, self.room))}"
        return self.problem


class Choice(NamedTuple):
    """A node's key, and why it is not the one that was asked for by name."""

    node: str
    why: str | None = None


def choose(wanted: str, head: str, nodes: Sequence[Candidate], needed: int, step_ms: float) -> Choice:
    """The node of a chain's draft.

    Args:
        wanted: AUTO, HEAD_PC, or a node's name or key.
        head: Key of the node on the head's PC, which takes what no other can.
        nodes: All that are in.
        needed: Bytes that the draft takes.
        step_ms: Of the chain, once round with a single row.
    """
    if wanted == HEAD_PC:
        return Choice(head)
    if wanted == AUTO:
        fit = [node for node in nodes if node.obstacle(needed) is None and node.round_trip_ms <= _MOST_STEPS * step_ms]
        best = min(fit, key=lambda node: (node.drafts, node.round_trip_ms, node.name), default=None)
        return Choice(head if best is None else best.key)
    named = next((node for node in nodes if wanted in (node.name, node.key)), None)
    if named is None:
        return Choice(head, f"no node that is here is called {wanted!r}")
    why = None if named.key == head else named.obstacle(needed)
    return Choice(named.key) if why is None else Choice(head, f"{named.name}: {why}")
