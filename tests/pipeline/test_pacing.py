from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_chain import TimedChain, reference, request

from pipeline.messages import StageTiming
from pipeline.pacing import Pace, Pacing
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig
from pipeline.step_times import StepShape, StepTable, StepTimes

CLIFF = ((1, 10.0), (4, 13.0), (8, 40.0), (16, 60.0))
"""8 rows cost more than two steps of 4."""


def pacing(stages: int, table: StepTable | None = None, link_ms: float = 0.0) -> Pacing:
    return Pacing(stages, StepTimes(table, link_ms, stages))


def timed(
    stages: int,
    times: tuple[tuple[int, float], ...] | None = None,
    link_ms: float = 0.0,
    *,
    told: bool = True,
    told_link_ms: float = 0.0,
    runs_ahead: bool = False,
) -> TimedChain:
    """A chain that takes the time the table says, or 1 ms for any step."""
    config = SchedulerConfig(
        kv_tokens=16384,
        block=16,
        context_length=2048,
        stages=stages,
        step_times=times if told else None,
        link_ms=told_link_ms,
        runs_ahead=runs_ahead,
        target_tbt_ms=None,
    )
    return TimedChain(Scheduler(config), StepTimes(times).answers_ms if times else lambda rows: 1.0, link_ms)


# The choice


def test_without_a_table_each_stage_has_a_step_as_far_as_there_are_users() -> None:
    chosen = pacing(stages=3)
    assert [chosen.pace(users) for users in (0, 1, 2, 3, 7, 64)] == [
        Pace(1, 0), Pace(1, 1), Pace(2, 1), Pace(3, 1), Pace(3, 3), Pace(3, 22)
    ]  # fmt: skip


def test_steps_stay_below_a_cliff() -> None:
    assert pacing(1, CLIFF).pace(8) == Pace(2, 4)
    assert pacing(2, CLIFF).pace(16) == Pace(4, 4)


def test_steps_stay_below_the_edge_of_a_bucket_up_to_many_rows() -> None:
    padded = [(rows, float(-(-rows // 32) * 32)) for rows in (1, 32, 33, 64, 65, 96)]
    assert pacing(1, padded).pace(64).rows in (32, 64)
    assert pacing(2, padded).pace(66) == Pace(3, 22)  # 33 rows cost as much as 64


def test_a_step_that_costs_the_same_for_all_is_not_split() -> None:
    assert pacing(1, [(1, 10.0), (16, 10.0)]).pace(16) == Pace(1, 16)


def test_a_long_way_round_is_filled_with_more_steps_than_stages() -> None:
    times = [(1, 10.0), (2, 19.0), (16, 140.0)]
    assert pacing(2, times).pace(8).in_flight == 2
    assert pacing(2, times, link_ms=20.0).pace(8).in_flight > 2


def test_a_way_round_longer_than_many_steps_is_filled_while_there_are_users() -> None:
    times = [(1, 10.0), (64, 640.0)]
    assert pacing(2, times, link_ms=100.0).pace(64).in_flight >= 2 + 100 // (64 // 12 * 10)
    assert pacing(2, times, link_ms=100.0).pace(12) == Pace(12, 1)
    assert pacing(2, times, link_ms=100.0).pace(5) == Pace(5, 1)


@given(st.integers(1, 64), st.integers(1, 4), st.sampled_from([None, CLIFF]), st.sampled_from([0.0, 45.0]))
def test_the_groups_have_room_for_every_user_and_none_to_spare(
    users: int, stages: int, times: StepTable | None, link_ms: float
) -> None:
    pace = pacing(stages, times, link_ms).pace(users)
    assert (pace.rows - 1) * pace.in_flight < users <= pace.rows * pace.in_flight
    assert 1 <= pace.in_flight <= 2 * stages + link_ms / 10 + 1


def test_a_table_is_not_trusted_to_the_last_percent() -> None:
    # four rows measured a little faster than two: one step in flight would leave a stage idle for nothing
    assert pacing(2, [(1, 10.0), (2, 10.0), (4, 9.9)]).pace(4) == Pace(2, 2)


# What is learnt


def see(times: StepTimes, rows: int, ms: float, steps: int = 32) -> None:
    """Steps of a chain of one stage that have taken so long."""
    for _ in range(steps):
        times.observe(StepShape(rows, 0, 0.0), (StageTiming(0.0, 1e3 * ms, 0.0),), ms)


def test_a_cliff_that_is_met_is_learnt() -> None:
    times = StepTimes([(1, 10.0), (4, 13.0), (8, 17.0)])
    chosen = Pacing(1, times)
    assert chosen.pace(8) == Pace(1, 8)
    see(times, 4, 13.0)  # so that it is not all steps that are slow
    for _ in range(16):
        see(times, 4, 13.0, 20)
        see(times, 8, 40.0, 12)
    assert chosen.pace(8) == Pace(2, 4)


def test_a_pace_does_not_follow_what_hardly_moves() -> None:
    times = StepTimes([(1, 10.0), (4, 13.0), (8, 28.5)])
    chosen = Pacing(1, times)
    before = chosen.pace(8)
    for ms in (27.5, 29.5) * 20:
        see(times, 4, 13.0, 20)
        see(times, 8, ms, 12)
        assert chosen.pace(8) == before


def test_a_pace_in_force_stays_until_the_usual_one_is_better_at_all() -> None:
    times = StepTimes([(1, 10.0), (4, 10.0), (8, 25.0)])
    chosen = Pacing(1, times)
    assert chosen.pace(8) == Pace(2, 4)

    def become(ms: float) -> None:
        for _ in range(16):
            see(times, 4, 10.0, 20)
            see(times, 8, ms, 12)

    become(21.0)  # from the usual one this would not be worth the change
    assert Pacing(1, times).pace(8) == Pace(1, 8)
    assert chosen.pace(8) == Pace(2, 4)
    become(18.0)
    assert chosen.pace(8) == Pace(1, 8)


# What it does to a chain


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("users", range(2, 17))
def test_two_stages_have_no_bubbles(users: int, runs_ahead: bool) -> None:
    chain = timed(stages=2, runs_ahead=runs_ahead)
    requests = [request(f"r{i}", [i, 1, 2], 80) for i in range(users)]
    for i, wanted in enumerate(requests):
        chain.arrive(1.7 * i, wanted)
    chain.run()
    assert chain.busy(1.7 * users, 80.0) == pytest.approx(1.0)
    assert all(chain.answers.of(wanted.id) == reference(wanted, 2) for wanted in requests[:2])


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("runs_ahead", [False, True])
def test_it_stays_full_while_users_come_and_go(stages: int, runs_ahead: bool) -> None:
    chain = timed(stages, runs_ahead=runs_ahead)
    for i in range(60):
        chain.arrive(2.3 * i, request(f"r{i}", [i, 1, 2], 5 + 7 * i % 40))
    chain.run()
    assert chain.busy(2.3 * 2 * stages, 2.3 * 60) > 0.97


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("users", range(2, 17))
def test_groups_stay_balanced_after_others_have_left(users: int, runs_ahead: bool) -> None:
    times = tuple((rows, 5.0 + rows) for rows in (1, 16))
    chain = timed(2, times, runs_ahead=runs_ahead)
    for i in range(users):  # long ones and short ones, so that those who leave are not dealt evenly
        chain.arrive(0.0, request(f"long{i}", [i, 1], 60))
    for i in range(9):
        chain.arrive(30.0 * i, request(f"short{i}", [i, 2], 3))
    chain.run()
    sizes = [len(step.rows) for step in chain.chain.log if len(step.rows) == len(step.tokens)]
    settled = sizes[-40:-4]
    assert {sum(pair) for pair in pairwise(settled)} == {users}
    assert max(settled) - min(settled) <= 1


def test_what_the_table_chooses_is_faster_than_a_step_for_each_stage() -> None:
    ends = {}
    for told in (True, False):
        chain = timed(2, CLIFF, told=told)
        for i in range(16):
            chain.arrive(0.0, request(f"r{i}", [i], 50))
        chain.run()
        ends[told] = chain.now
    assert ends[True] < 0.8 * ends[False]


@pytest.mark.parametrize("told_link_ms", [20.0, 0.0])
@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_long_way_round_leaves_no_bubbles_either(told_link_ms: float, runs_ahead: bool) -> None:
    """Whether it is known beforehand or must be learnt."""
    times = tuple((rows, 10.0 * rows) for rows in (1, 16))
    chain = timed(2, times, 20.0, told_link_ms=told_link_ms, runs_ahead=runs_ahead)
    for i in range(8):
        chain.arrive(0.0, request(f"r{i}", [i], 100))
    chain.run()
    assert chain.busy(4000.0, 7000.0) > 0.99
