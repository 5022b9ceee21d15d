from __future__ import annotations

import pytest
from pydantic import ValidationError

from pipeline.simulation.link_model import LinkModel, Wire
from pipeline.simulation.stage_model import StageModel
from shards.runtime import SequenceRows


def test_a_table_is_linear_between_its_points_and_goes_on_by_the_last_slope() -> None:
    stage = StageModel(step_ms=((1, 10), (3, 20), (4, 50)))
    assert [stage.table_ms(rows) for rows in (0.5, 1, 2, 3, 3.5, 4, 6)] == [10, 10, 15, 20, 35, 50, 110]
    assert StageModel(step_ms=((1, 10), (2, 4))).table_ms(9) == 0  # a step never takes less than nothing
    assert StageModel(step_ms=((4, 7),)).table_ms(100) == 7


def test_rows_are_padded_to_buckets_and_to_multiples_of_the_last() -> None:
    stage = StageModel(step_ms=((1, 1), (2, 2)), buckets=(2, 8, 32))
    assert [stage.table_ms(rows) for rows in (1, 2, 3, 8, 9, 32, 33, 65)] == [2, 2, 8, 8, 32, 32, 64, 96]


def test_a_call_costs_besides_but_operations_alone_cost_nothing() -> None:
    stage = StageModel(step_ms=((1, 1), (2, 2)), call_ms=0.5)
    assert stage.time_ms([SequenceRows(0, 0, 1), SequenceRows(1, 500, 2, 1)]) == 3.5
    assert stage.time_ms([]) == 0


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"step_ms": ()}, "at least 1 item"),
        ({"step_ms": ((2, 1), (1, 2))}, "must grow from above 0, these are"),
        ({"step_ms": ((0, 1),)}, "must grow from above 0"),
        ({"step_ms": ((float("nan"), 1),)}, "must grow from above 0"),
        ({"step_ms": ((1, 0),)}, "every time must be above 0, and one is 0.0"),
        ({"step_ms": ((1, float("inf")),)}, "every time must be above 0, and one is inf"),
        ({"step_ms": ((1, 1),), "buckets": (4, 4)}, "must grow from 1 or more"),
        ({"step_ms": ((1, 1),), "jitter": -1}, "greater than or equal to 0"),
        ({"step_ms": ((1, 1),), "colour": 1}, "Extra inputs"),
    ],
)
def test_impossible_stages_are_refused(fields: dict[str, object], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        StageModel.model_validate(fields)


def test_frames_wait_for_the_rate_and_overlap_in_the_latency() -> None:
    link = LinkModel(latency_ms=50, mbit=8, frame_bytes=1000)  # 1 kB is 1 ms
    wire = Wire(link)
    assert [wire.carry(now, 3000) for now in (0, 0, 1, 100)] == [54, 58, 62, 154]
    assert Wire(LinkModel()).carry(7, 10**9) == 7
