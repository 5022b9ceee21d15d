"""Measured times that must not fall, made so. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median_low


def monotone(times: Iterable[float]) -> list[float]:
    """The times of ever more rows, so that fewer never take longer.

    Where a table says they do, something else was running, or its figures are differences that noise has swallowed.
    Neighbours that contradict one another are put together and have their median, so that one wrong figure among them
    counts for little, whichever way it is wrong (isotonic regression under the L1 norm by pooling adjacent violators;
    Robertson & Waltman 1968).
    """
    pools: list[list[float]] = []
    for time in times:
        pool = [time]
        while pools and median_low(pools[-1]) > median_low(pool):
            pool = pools.pop() + pool
        pools.append(pool)
    return [median_low(pool) for pool in pools for _ in pool]
