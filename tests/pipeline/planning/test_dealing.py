from __future__ import annotations

import pytest
from brute_force import splits
from hypothesis import given
from hypothesis import strategies as st

from pipeline.planning.dealing import Deal
from pipeline.planning.prediction import StepTimes

_MS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 3.0, 7.0]) | st.floats(0, 10)


def step(*layer: float, bases: tuple[float, ...] | None = None, way: float = 0.0, transfer: float = 0.0) -> StepTimes:
    return StepTimes(bases or (0.0,) * len(layer), layer, way, transfer)


def test_one_step_alone_goes_where_it_is_quickest() -> None:
    assert Deal(step(1.0, 2.0, 3.0), (9, 9, 9), 9, in_flight=1).best() == (7, 1, 1)
    assert Deal(step(1.0, 2.0, 3.0), (4, 3, 9), 9, in_flight=1).best() == (4, 3, 2)


def test_many_steps_want_all_stages_equally_busy() -> None:
    assert Deal(step(1.0, 2.0, 3.0), (11, 11, 11), 11, in_flight=3).best() == (6, 3, 2)
    assert Deal(step(1.0, 1.0, bases=(0.0, 4.0)), (12, 12), 12, in_flight=2).best() == (8, 4)


def test_a_long_way_leaves_room_for_the_quickest_stage() -> None:
    assert Deal(step(1.0, 2.0, way=20.0), (12, 12), 12, in_flight=2).best() == (11, 1)


def test_a_period_that_is_not_short_enough_is_none() -> None:
    deal = Deal(step(1.0, 1.0), (9, 9), 9, in_flight=2)
    assert deal.best(below=10.0) is None
    assert deal.best(below=10.1) == (5, 4)


@st.composite
def deals(draw: st.DrawFn) -> tuple[StepTimes, tuple[int, ...], int, int]:
    stages = draw(st.integers(1, 4))
    bases, layer = (tuple(draw(st.lists(_MS, min_size=stages, max_size=stages))) for _ in range(2))
    layers = draw(st.integers(stages, 12))
    most = draw(st.lists(st.integers(1, layers), min_size=stages, max_size=stages).filter(lambda m: sum(m) >= layers))
    times = StepTimes(bases, layer, way=draw(_MS), transfer=draw(_MS))
    return times, tuple(most), layers, draw(st.integers(1, 6))


@given(deals())
def test_no_dealing_is_better(deal: tuple[StepTimes, tuple[int, ...], int, int]) -> None:
    times, most, layers, in_flight = deal
    periods = [
        times.period(split, in_flight)
        for split in splits(layers, len(most))
        if all(count <= fits for count, fits in zip(split, most, strict=True))
    ]
    found = Deal(times, most, layers, in_flight)
    best = found.best()
    assert best is not None
    assert sum(best) == layers and all(1 <= count <= fits for count, fits in zip(best, most, strict=True))
    assert times.period(best, in_flight) == pytest.approx(min(periods))
    assert found.least_period <= min(periods) * (1 + 1e-9)
