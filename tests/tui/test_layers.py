from __future__ import annotations

import pytest
from pydantic import ValidationError

from tui import layers
from tui.client.plan import PlannedStage
from tui.client.state import Stage


@pytest.mark.parametrize(
    ("begin", "end", "ends", "count"),
    [
        (0, 12, ("0", "11"), "12"),
        (7, 8, ("7", "7"), "1"),
        (0, 11.5, ("0", "11½"), "11½"),
        (11.5, 20, ("11½", "19"), "8½"),
        (1.5, 2.5, ("1½", "2½"), "1"),
    ],
)
def test_layers_in_words(begin: float, end: float, ends: tuple[str, str], count: str) -> None:
    assert layers.ends(begin, end) == ends
    assert layers.count(end - begin) == count


def test_a_planned_stage_has_its_edges() -> None:
    stage = PlannedStage(node="a", first_layer=1, end_layer=3, begins_after_attention=True, memory=1)
    assert (stage.begin, stage.end) == (1.5, 3)
    assert (stage.model_copy(update={"ends_after_attention": True})).end == 2.5


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_layers_that_are_no_numbers_are_refused(number: float) -> None:
    with pytest.raises(ValidationError):
        Stage(layers=(0, number))
