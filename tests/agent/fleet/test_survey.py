"""What the survey makes of what nodes report; the fleet is a test's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agent.fleet.control.messages import LinkMeasure
from agent.fleet.head.survey import Survey
from pipeline.planning.plan import HEAD

HERE, NEAR, FAR = "h" * 40, "n" * 40, "f" * 40


def record(key: str, links: dict[str, tuple[float, float]], unreachable: set[str] | None = None) -> Any:
    measures = {p: LinkMeasure(peer=p, latency_ms=ms, bytes_per_second=rate) for p, (ms, rate) in links.items()}
    return SimpleNamespace(key=key, links=measures, unreachable=unreachable or set())


def links(*records: Any) -> dict[tuple[str, str], float]:
    fleet = SimpleNamespace(nodes=lambda: records, local_key=HERE)
    found = Survey(fleet, None, None).links()  # type: ignore[arg-type]
    return {(link.source, link.target): link.latency_ms for link in found}


def test_a_way_measured_from_one_end_counts_for_both_directions() -> None:
    found = links(record(NEAR, {FAR: (0.2, 1e8)}), record(FAR, {}))
    assert found == {(NEAR, FAR): 0.2, (FAR, NEAR): 0.2}


def test_each_direction_keeps_its_own_measurement() -> None:
    found = links(record(NEAR, {FAR: (0.2, 1e8)}), record(FAR, {NEAR: (0.7, 1e7)}))
    assert found == {(NEAR, FAR): 0.2, (FAR, NEAR): 0.7}


def test_the_head_is_where_its_own_node_is() -> None:
    found = links(record(HERE, {NEAR: (0.4, 1e8)}), record(NEAR, {}))
    assert found[HEAD, NEAR] == found[NEAR, HEAD] == 0.4


def test_nodes_that_cannot_reach_each_other_are_far_apart() -> None:
    found = links(record(NEAR, {}, {FAR}), record(FAR, {}))
    assert found[NEAR, FAR] == found[FAR, NEAR] > 1000
