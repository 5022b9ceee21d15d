from itertools import pairwise

import pytest
from fleet_states import chain
from hypothesis import given
from hypothesis import strategies as st

from tui.client.state import ChainTimes, Stage, StageTimes, Step
from tui.fleet.step_marks import ROUND_MS, Round, drawn, phases, round_of, shift, symbols

times = st.floats(0, 1e7)
chains = st.builds(
    lambda computes, traversal, wire: chain(
        [1],
        stages=tuple(
            Stage(layers=(0, 1), microseconds=None if compute is None else StageTimes(compute=compute))
            for compute in computes
        ),
        traversal_ms=traversal,
        microseconds=ChainTimes(wire=wire),
    ),
    st.lists(st.none() | times, min_size=1, max_size=20),
    st.none() | times,
    times,
)


@given(chains, st.floats(0, 1))
def test_a_step_is_always_somewhere_on_the_way(made: object, phase: float) -> None:
    round_ = round_of(made)  # type: ignore[arg-type]
    legs = len(made.stages) * 2  # type: ignore[attr-defined]
    leg, part = round_.position(phase)
    assert 0 <= leg < legs and 0 <= part <= 1
    assert round_.milliseconds > 0 and len(round_.ends) == legs


@given(chains, st.lists(st.floats(0, 1), min_size=2))
def test_who_is_further_is_not_drawn_behind(made: object, at: list[float]) -> None:
    round_ = round_of(made)  # type: ignore[arg-type]
    for before, after in pairwise(sorted(at)):
        assert round_.position(before) <= round_.position(after)


def test_a_step_is_at_the_stage_where_its_age_puts_it() -> None:
    round_ = round_of(chain([1, 2]))  # 1 ms, 0.5 ms, 1 ms, 0.5 ms
    at = [round_.position(age / 3.0) for age in (0.0, 0.5, 1.25, 2.0, 2.75)]
    assert [leg for leg, _ in at] == [0, 0, 1, 2, 3]
    assert [part for _, part in at] == pytest.approx([0, 0.5, 0.5, 0.5, 0.5])


def test_a_step_that_is_late_has_all_but_arrived() -> None:
    made = chain([1, 2], steps=1).model_copy(update={"steps": (Step(number=1, rows=1, age_ms=60_000),)})
    (phase,) = phases(made, round_of(made))
    leg, part = round_of(made).position(phase)
    assert leg == 3 and part > 0.9


def test_nothing_is_known_yet() -> None:
    made = chain([1, 2], traversal_ms=None, microseconds=ChainTimes(), stages=(Stage(layers=(0, 1)),) * 2)
    assert round_of(made).ends == (0.25, 0.5, 0.75, 1.0)


def test_chunks_of_prompts_have_another_mark() -> None:
    steps = (Step(number=1, rows=64, sequences=1), Step(number=2, rows=4, sequences=4))
    assert symbols(chain([1], steps=1).model_copy(update={"steps": steps})) == ["◆", "●"]


@given(st.lists(st.floats(0, 0.999), min_size=1, max_size=8), st.floats(0, 0.999))
def test_the_same_distances_go_on_from_where_they_are(new: list[float], moved: float) -> None:
    shown = [(phase + moved) % 1.0 for phase in new]
    by = shift(shown, new)
    for phase in shown:
        nearest = min(abs(phase - (other + by) % 1.0) for other in new)
        assert min(nearest, 1 - nearest) == pytest.approx(0, abs=1e-6)


def test_a_short_round_is_slowed() -> None:
    round_ = Round(30.0, (0.5, 1.0))
    assert round_.slowed == ROUND_MS / 30
    assert drawn([0.0], round_, 0.0, ROUND_MS / 4000) == pytest.approx([0.25])
    assert drawn([0.9], round_, 0.2, 0.0) == pytest.approx([0.1])


def test_a_long_round_is_drawn_as_it_is_and_ends() -> None:
    round_ = Round(10_000.0, (0.5, 1.0))
    assert drawn([0.1, 0.9], round_, 0.3, 2.0) == pytest.approx([0.3, 1.0])
