"""What is counted while chains come and go; the heads are a test's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_head import FakeHead

from agent.metrics import Metrics
from pipeline.snapshots import HeadSnapshot
from pipeline.speculation.drafter import DrafterFacts


def chain(number: int, steps: int, dropped: int = 0) -> HeadSnapshot:
    seen = FakeHead(lambda _: iter(())).snapshot()
    return replace(
        seen,
        scheduler=replace(seen.scheduler, steps=steps, rows=2 * steps),
        times=replace(seen.times, chain=number),
        dropped=dropped,
    )


@pytest.fixture
def chains() -> list[HeadSnapshot]:
    return []


@pytest.fixture
def metrics(chains: list[HeadSnapshot]) -> Metrics:
    return Metrics(lambda: chains)


def value(metrics: Metrics, name: str) -> float:
    (line,) = [line for line in metrics.text().decode().splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def test_counters_do_not_go_back_when_a_chain_takes_the_place_of_another(
    chains: list[HeadSnapshot], metrics: Metrics
) -> None:
    seen = []
    for now in ([chain(1, 100, 3)], [chain(1, 120, 3), chain(2, 5)], [chain(2, 9)], [], [chain(3, 1)]):
        chains[:] = now
        seen.append(value(metrics, "edge_agent_steps_total"))
        assert value(metrics, "edge_agent_rows_total") == 2 * seen[-1]
    assert seen == [100, 125, 129, 129, 130]
    assert value(metrics, "edge_agent_dropped_frames_total") == 3


def test_without_a_chain_nothing_is_up(metrics: Metrics) -> None:
    assert value(metrics, "edge_agent_up") == 0


def counting(number: int, **counts: int) -> HeadSnapshot:
    seen = chain(number, 1)
    return replace(seen, scheduler=replace(seen.scheduler, **counts))


def test_what_the_prefix_cache_saves(chains: list[HeadSnapshot], metrics: Metrics) -> None:
    assert "edge_agent_prefix_cache_hit_ratio" not in metrics.text().decode()  # nothing was looked for
    first = counting(1, lookups=4, hits=3, prompt_tokens=1000, cached_tokens=600, evicted_tokens=64)
    chains[:] = [first, counting(2, lookups=4, hits=1, prompt_tokens=600, cached_tokens=40)]
    for name, wanted in (
        ("lookups_total", 8),
        ("hits_total", 4),
        ("saved_tokens_total", 640),
        ("evicted_tokens_total", 64),
        ("hit_ratio", 0.5),
        ("saved_ratio", 0.4),
    ):
        assert value(metrics, f"edge_agent_prefix_cache_{name}") == wanted
    assert value(metrics, "edge_agent_prompt_tokens_total") == 1600


def test_who_waits_is_told_by_service_and_by_reason(chains: list[HeadSnapshot], metrics: Metrics) -> None:
    chains[:] = [counting(1, running=3, waiting=5, waiting_batch=4, preempted=3, paused=2), counting(2, waiting=1)]
    assert value(metrics, 'edge_agent_waiting{service="interactive"}') == 2
    assert value(metrics, 'edge_agent_waiting{service="batch"}') == 4
    states = {"running": 3, "waiting": 6, "preempted": 1, "paused": 2}
    for state, count in states.items():
        assert value(metrics, f'edge_agent_sequences{{state="{state}"}}') == count


def test_what_becomes_of_guesses(chains: list[HeadSnapshot], metrics: Metrics) -> None:
    chains[:] = [chain(1, 1)]
    assert "edge_agent_guesses_right_ratio" not in metrics.text().decode()  # none was sent
    assert "edge_agent_drafter_up{" not in metrics.text().decode()  # and nothing guesses
    first, second = counting(1, sent_guesses=30, right_guesses=20), counting(2, sent_guesses=10, right_guesses=10)
    chains[:] = [
        replace(first, drafter=DrafterFacts("n-gram")),
        replace(second, drafter=DrafterFacts("n-gram, then small", "small: it has ended (n-gram goes on)")),
    ]
    assert value(metrics, "edge_agent_guesses_sent_total") == 40
    assert value(metrics, "edge_agent_guesses_right_total") == 30
    assert value(metrics, "edge_agent_guesses_right_ratio") == 0.75
    assert 'edge_agent_drafter_up{chain="0",drafter="n-gram"} 1.0' in metrics.text().decode()
    assert 'edge_agent_drafter_up{chain="1",drafter="n-gram, then small"} 0.0' in metrics.text().decode()
