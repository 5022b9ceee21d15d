from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_chain import TimedChain, reference, request

from pipeline.pacing import Pace, Pacing
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig

CLIFF = ((1, 10.0), (4, 13.0), (8, 40.0), (16, 60.0))
"""8 rows cost more than two steps of 4."""


def timed(stages: int, times: tuple[tuple[int, float], ...] | None = None, link_ms: float = 0.0) -> TimedChain:
    """A chain that takes the time the table says, or 1 ms for any step."""
    config = SchedulerConfig(
        kv_tokens=16384, block=16, context_length=2048, stages=stages, step_times=times, link_ms=link_ms
    )
    step_ms = Pacing(stages, times).step_ms if times else lambda rows: 1.0
    return TimedChain(Scheduler(config), step_ms, link_ms)


# The choice


def test_without_a_table_each_stage_has_a_step() -> None:
    pacing = Pacing(stages=3)
    assert [pacing.pace(users) for users in (0, 1, 3, 7, 64)] == [
        Pace(3, 0), Pace(3, 1), Pace(3, 1), Pace(3, 3), Pace(3, 22)
    ]  # fmt: skip


def test_steps_stay_below_a_cliff() -> None:
    assert Pacing(1, CLIFF).pace(8) == Pace(2, 4)
    assert Pacing(2, CLIFF).pace(16) == Pace(4, 4)


def test_a_step_that_costs_the_same_for_all_is_not_split() -> None:
    assert Pacing(1, [(1, 10.0), (16, 10.0)]).pace(16) == Pace(1, 16)


def test_a_long_way_round_is_filled_with_more_steps_than_stages() -> None:
    times = [(1, 10.0), (2, 19.0), (16, 140.0)]
    assert Pacing(2, times).pace(8).in_flight == 2
    assert Pacing(2, times, link_ms=20.0).pace(8).in_flight > 2


def test_step_times_are_linear_between_and_beyond_the_measured() -> None:
    pacing = Pacing(1, [(8, 40.0), (2, 10.0), (4, 20.0)])
    assert [pacing.step_ms(rows) for rows in (1, 2, 3, 6, 8, 10)] == [5.0, 10.0, 15.0, 30.0, 40.0, 50.0]
    assert Pacing(1, [(4, 7.0)]).step_ms(100) == 7.0


@given(st.integers(1, 64), st.integers(1, 4), st.sampled_from([None, CLIFF]))
def test_the_groups_have_room_for_every_user_and_none_to_spare(
    users: int, stages: int, times: tuple[tuple[int, float], ...] | None
) -> None:
    pace = Pacing(stages, times).pace(users)
    assert (pace.rows - 1) * pace.in_flight < users <= pace.rows * pace.in_flight
    assert 1 <= pace.in_flight <= 2 * stages


@given(st.integers(1, 2000), st.integers(1, 256), st.integers(1, 5), st.sampled_from([None, CLIFF]))
def test_a_chunk_is_some_of_the_prompt(
    rows: int, most: int, stages: int, times: tuple[tuple[int, float], ...] | None
) -> None:
    most = min(rows, most)
    assert 1 <= Pacing(stages, times).chunk(rows, most) <= most


def test_chunks_overlap_on_stages_and_only_there() -> None:
    times = [(1, 5.3), (64, 24.2)]
    assert Pacing(1, times).chunk(200, most=200) == 200
    assert Pacing(2, times).chunk(200, most=200) in range(40, 80)
    assert Pacing(4, times).chunk(200, most=200) < Pacing(2, times).chunk(200, most=200)


# What it does to a chain


@pytest.mark.parametrize("users", range(2, 17))
def test_two_stages_have_no_bubbles(users: int) -> None:
    chain = timed(stages=2)
    requests = [request(f"r{i}", [i, 1, 2], 80) for i in range(users)]
    for i, wanted in enumerate(requests):
        chain.arrive(1.7 * i, wanted)
    chain.run()
    assert chain.busy(1.7 * users, 80.0) == pytest.approx(1.0)
    assert all(chain.answers.of(wanted.id) == reference(wanted, 2) for wanted in requests[:2])


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_it_stays_full_while_users_come_and_go(stages: int) -> None:
    chain = timed(stages)
    for i in range(60):
        chain.arrive(2.3 * i, request(f"r{i}", [i, 1, 2], 5 + 7 * i % 40))
    chain.run()
    assert chain.busy(2.3 * 2 * stages, 2.3 * 60) > 0.97


@pytest.mark.parametrize("users", range(2, 17))
def test_groups_stay_balanced_after_others_have_left(users: int) -> None:
    times = tuple((rows, 5.0 + rows) for rows in (1, 16))
    chain = timed(2, times)
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
    for name, told in (("table", CLIFF), ("none", None)):
        chain = timed(2, told)
        chain._step_ms = Pacing(2, CLIFF).step_ms
        for i in range(16):
            chain.arrive(0.0, request(f"r{i}", [i], 50))
        chain.run()
        ends[name] = chain.now
    assert ends["table"] < 0.8 * ends["none"]


def test_a_long_way_round_leaves_no_bubbles_either() -> None:
    times = tuple((rows, 10.0 * rows) for rows in (1, 16))
    chain = timed(2, times, link_ms=20.0)
    for i in range(8):
        chain.arrive(0.0, request(f"r{i}", [i], 50))
    chain.run()
    assert chain.busy(500.0, 2000.0) > 0.99


def test_a_long_prompt_delays_others_by_no_more_than_the_budget() -> None:
    times = tuple((rows, 5.0 + rows) for rows in (1, 256))
    chain = timed(2, times)
    chain.arrive(0.0, request("talking", [1], 40))
    chain.arrive(50.0, request("long", range(1500), 1))
    chain.run()
    pauses = [b - a for a, b in pairwise(chain.tokens_at["talking"])]
    assert max(pauses) <= 3 * (5.0 + 256)  # a chunk before it, and its own step's two stages


def test_a_table_is_not_trusted_to_the_last_percent() -> None:
    # four rows measured a little faster than two: one step in flight would leave a stage idle for nothing
    assert Pacing(2, [(1, 10.0), (2, 10.0), (4, 9.9)]).pace(4) == Pace(2, 2)


def test_fewer_rows_never_take_longer() -> None:
    assert Pacing(2, [(1, 8.0), (2, 20.0), (4, 9.0)]).step_ms(2) == 9.0
