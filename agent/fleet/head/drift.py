"""Noticing that nodes are not what they were measured to be: on battery, say, or with other things to do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

FACTOR = 1.5
"""A stage that takes so many times what was measured, or that part of it, does not fit any more."""

_LOOKS = 3
"""Looks in a row that must say so."""
_STEPS = 50
"""Steps between two looks without which nothing can be said."""
_MOST_ROWS = 16.0
"""With more rows a step on average, prompts were among them, which take other times."""
_AGAIN_SECONDS = 600.0
"""Least time between two measurements of a node."""


@dataclass(frozen=True, slots=True)
class Look:
    """A chain at a moment."""

    steps: int
    """Since it began."""
    rows: int
    """Of all its steps."""
    compute_ms: tuple[float, ...]
    """What a step takes on each stage."""


@dataclass(slots=True)
class DriftWatch:
    """Compares what stages take with what was predicted, look after look."""

    _last: dict[Hashable, Look] = field(default_factory=dict)
    _streaks: dict[str, int] = field(default_factory=dict)
    _told: dict[str, float] = field(default_factory=dict)

    def look(
        self,
        chain: Hashable,
        nodes: Sequence[str],
        seen: Look,
        predicted: Callable[[int], Sequence[float]],
        now: float,
    ) -> list[str]:
        """Take in a look at a chain.

        Args:
            chain: Which one.
            nodes: Of its stages.
            seen: What it does.
            predicted: Milliseconds of each stage for a number of rows.
            now: Seconds, from any beginning.

        Returns:
            The nodes that have to be measured again.
        """
        last = self._last.get(chain)
        self._last[chain] = seen
        steps = seen.steps - last.steps if last else 0
        if last is None or steps < _STEPS or (seen.rows - last.rows) / steps > _MOST_ROWS:
            return []
        rows = max(1, round((seen.rows - last.rows) / steps))
        drifted: list[str] = []
        for node, real, wanted in zip(nodes, seen.compute_ms, predicted(rows), strict=True):
            fits = wanted / FACTOR <= real <= wanted * FACTOR
            self._streaks[node] = 0 if fits else self._streaks.get(node, 0) + 1
            if self._streaks[node] >= _LOOKS and now - self._told.get(node, -_AGAIN_SECONDS) >= _AGAIN_SECONDS:
                self._streaks[node], self._told[node] = 0, now
                drifted.append(node)
        return drifted

    def forget(self, chains: Sequence[Hashable]) -> None:
        """Keep nothing of chains other than these."""
        self._last = {chain: look for chain, look in self._last.items() if chain in chains}
