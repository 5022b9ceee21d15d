from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agent.fleet.bulk.pace import ASSUMED_RATE, SHARE, Meter, Pace

SLICE = 2**18


def sent_in(pace: Pace, start: float, seconds: float) -> tuple[int, list[float]]:
    """Bytes that go in a stretch of virtual time when there is always something to send, and when they go."""
    now, times = start, []
    while now < start + seconds:
        if wait := pace.wait(now):
            now += wait
            continue
        pace.spend(SLICE, now)
        times.append(now)
        if not pace.busy:
            break
    return len(times) * SLICE, times


def test_quiet_means_no_limit() -> None:
    pace = Pace()
    for _ in range(100):
        assert pace.wait(5.0) == 0
        pace.spend(SLICE, 5.0)


def test_a_tenth_of_the_rate_while_tokens_flow() -> None:
    pace = Pace(rate=100e6)
    pace.busy = True
    sent, times = sent_in(pace, 1000.0, 60.0)
    assert 0.99 * 60 * 10e6 <= sent <= 60 * 10e6 + SLICE
    gaps = [after - before for before, after in pairwise(times)]
    assert max(gaps) - min(gaps) < 1e-6  # evenly, never a burst


def test_what_was_sent_in_quiet_times_is_no_debt_and_waiting_no_credit() -> None:
    pace = Pace(rate=100e6)
    for _ in range(1000):
        pace.spend(SLICE, 0.0)
    pace.busy = True
    assert pace.wait(0.0) == 0
    sent, _ = sent_in(pace, 3600.0, 1.0)
    assert sent <= 10e6 + SLICE
    pace.busy = False
    assert pace.wait(3600.0) == 0


def test_a_link_that_was_not_measured_is_taken_for_a_slow_one() -> None:
    pace = Pace()
    pace.busy = True
    assert sent_in(pace, 0.0, 10.0)[0] <= 10 * ASSUMED_RATE * SHARE + SLICE


@given(
    rate=st.floats(1e4, 1e10),
    steps=st.lists(st.tuples(st.integers(1, SLICE), st.floats(0, 1)), min_size=1, max_size=50),
)
def test_no_stretch_of_time_has_more_than_the_share(rate: float, steps: list[tuple[int, float]]) -> None:
    pace = Pace(rate=rate)
    pace.busy = True
    now, log = 0.0, []
    for size, pause in steps:
        now += pause
        now += pace.wait(now)
        pace.spend(size, now)
        log.append((now, size))
    for first, (start, _) in enumerate(log):
        for last in range(first, len(log)):
            between = sum(size for _, size in log[first:last])  # the last one has only begun
            assert between <= rate * SHARE * (log[last][0] - start) * (1 + 1e-6) + 1


def test_the_meter_knows_the_last_seconds() -> None:
    meter = Meter(seconds=5.0)
    assert meter.rate(0, 10.0) == 0
    assert meter.rate(100, 11.0) == 100
    for second in range(2, 20):
        rate = meter.rate(100, 10.0 + second)
    assert rate == 0
