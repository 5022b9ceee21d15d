"""Rates and gauges over time."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tui.client.history import SAMPLES, History
from tui.client.state import Fleet

MODEL = {"name": "m", "layers": 2, "context_length": 64}


def state(*chains: dict[str, Any], parked: int = 0) -> Fleet:
    return Fleet.model_validate({"model": MODEL, "chains": chains, "parked": parked})


def chain(number: int, tokens: int, stages: list[tuple[str, float | None, int]], **gauges: int) -> dict[str, Any]:
    return {
        "id": number,
        "stages": [{"layers": [0, 1], "node": node, "use": use, "sent_bytes": sent} for node, use, sent in stages],
        "scheduler": {"completion_tokens": tokens, **gauges},
    }


def test_rates_are_differences_over_time() -> None:
    history = History()
    history.add(state(chain(1, 100, [("a", 0.25, 1000), ("b", None, 0)], waiting=2, running=1), parked=3), 10.0)
    history.add(state(chain(1, 110, [("a", 0.5, 3000), ("b", 1.0, 10)], waiting=0, running=4)), 12.0)
    assert list(history.tokens_per_second) == [0.0, 5.0]
    assert list(history.queue) == [5, 0]
    assert list(history.running) == [1, 4]
    assert {node: list(series) for node, series in history.stage_use.items()} == {"a": [0.25, 0.5], "b": [0.0, 1.0]}
    assert list(history.link_bytes_per_second["a"]) == [0.0, 1000.0]
    assert list(history.link_bytes_per_second["b"]) == [0.0, 5.0]


def test_chains_that_come_go_and_begin_again() -> None:
    history = History()
    history.add(state(chain(1, 100, [("a", 0.0, 0)])), 0.0)
    history.add(state(chain(2, 8, [("a", 0.0, 0)])), 1.0)  # opened since then: all it has said is new
    history.add(state(), 2.0)
    history.add(state(chain(2, 3, [("a", 0.0, 0)])), 3.0)  # another head, which counts from 0
    history.add(state(chain(2, 1, [("a", 0.0, 0)])), 3.0)  # no time has passed
    assert list(history.tokens_per_second) == [0.0, 8.0, 0.0, 3.0, 0.0]


def test_replicas_add_up_and_a_node_shows_its_busiest_stage() -> None:
    history = History()
    history.add(state(chain(1, 0, [("a", 0.2, 0)]), chain(2, 0, [("a", 0.9, 0)])), 0.0)
    history.add(state(chain(1, 5, [("a", 0.2, 10)]), chain(2, 7, [("a", 0.9, 20)])), 1.0)
    assert history.tokens_per_second[-1] == 12.0
    assert history.stage_use["a"][-1] == 0.9
    assert history.link_bytes_per_second["a"][-1] == 30.0


nodes = st.sampled_from("abc")
stages = st.lists(st.tuples(nodes, st.none() | st.floats(0, 1), st.integers(0, 10**9)), min_size=1, max_size=3)
chains = st.builds(chain, st.integers(1, 3), st.integers(0, 10**6), stages)
states = st.lists(chains, max_size=3, unique_by=lambda each: each["id"])


@given(st.lists(st.tuples(states, st.floats(0, 10)), min_size=1, max_size=30))
def test_all_series_have_the_same_length_and_nothing_negative(steps: list[tuple[list[dict[str, Any]], float]]) -> None:
    history, now = History(), 0.0
    for count, (said, seconds) in enumerate(steps, 1):
        now += seconds
        history.add(state(*said), now)
        series = [
            history.tokens_per_second,
            history.queue,
            history.running,
            *history.stage_use.values(),
            *history.link_bytes_per_second.values(),
        ]
        assert {len(each) for each in series} == {count}
        assert all(value >= 0 for each in series for value in each)
        assert {stage[0] for each in said for stage in _stages(each)} <= history.stage_use.keys()


def test_it_remembers_two_minutes() -> None:
    history = History()
    for number in range(SAMPLES + 50):
        history.add(state(chain(1, number, [("a", 0.5, 0)] if number < 10 else [("b", 0.5, 0)])), float(number))
    assert len(history.tokens_per_second) == len(history.stage_use["b"]) == SAMPLES
    assert "a" not in history.stage_use


def _stages(said: dict[str, Any]) -> list[tuple[str]]:
    return [(stage["node"],) for stage in said["stages"]]
