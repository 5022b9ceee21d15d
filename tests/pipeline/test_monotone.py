from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pipeline.monotone import monotone

times = st.lists(st.floats(0, 1e6), max_size=12)


@given(times)
def test_never_falls_and_keeps_what_never_fell(measured: list[float]) -> None:
    made = monotone(measured)
    assert len(made) == len(measured)
    assert all(a <= b for a, b in pairwise(made))
    assert set(made) <= set(measured)
    assert monotone(sorted(measured)) == sorted(measured)


@given(times.filter(lambda measured: len(measured) <= 5))
def test_no_other_times_that_never_fall_are_closer(measured: list[float]) -> None:
    def off(made: list[float]) -> float:
        return sum(abs(a - b) for a, b in zip(made, measured, strict=True))

    # the closest ones are found among the measured values
    def choices(length: int, least: float) -> list[list[float]]:
        if not length:
            return [[]]
        return [[v, *rest] for v in set(measured) if v >= least for rest in choices(length - 1, v)]

    best = min(map(off, choices(len(measured), 0.0)))
    assert off(monotone(measured)) <= best + 1e-6 * max(measured, default=0.0)


def test_one_wrong_figure_counts_for_little_whichever_way_it_is_wrong() -> None:
    assert monotone([1.6, 5.0, 1.8, 2.9]) == [1.6, 1.8, 1.8, 2.9]
    assert monotone([8.9, 22.3, 25.1, 2.1, 81.0]) == [8.9, 22.3, 22.3, 22.3, 81.0]
