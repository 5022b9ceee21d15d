"""What is counted while chains come and go; the heads are a test's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_head import FakeHead

from agent.metrics import Metrics
from pipeline.snapshots import HeadSnapshot


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
