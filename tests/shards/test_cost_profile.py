from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from zoo import LAYERS

from shards import manifest as manifests
from shards.balance import balance
from shards.errors import ConfigurationError
from shards.profile import CostProfile, _attention, _layer_time, measure
from shards.runtime import StageConfig


@pytest.mark.parametrize("engine", ["openvino-paged", "openvino-stateful"])
def test_the_parts_of_a_model_are_measured(tiny_package: Path, engine: str) -> None:
    told: list[float] = []
    config = StageConfig(package=tiny_package, first_layer=0, end_layer=1, engine=engine, tune=False)
    profile = measure(config, rows=(1, 3), progress=lambda what, done, total: told.append(done / total))
    assert (profile.rows, profile.device, profile.engine, profile.mode) == ((1, 3), "CPU", engine, "fast")
    assert all(layer >= 0 for part in (profile.fixed, profile.embed, profile.layer, profile.head) for layer in part)
    assert all(0 <= part <= layer for part, layer in zip(profile.attention, profile.layer, strict=True))
    assert told == [step / 7 for step in range(8)]
    assert CostProfile.model_validate_json(profile.model_dump_json()) == profile
    assert balance(profile.costs(LAYERS, 2), 2)[-1] == LAYERS


def test_layers_are_not_divided_in_exact_mode(tiny_package: Path) -> None:
    exact = measure(StageConfig(package=tiny_package, first_layer=0, end_layer=1, mode="exact"), rows=(1,))
    assert exact.attention == ()


PROFILE = CostProfile(
    device="CPU", engine="openvino-paged", mode="fast", rows=(1, 16, 64),
    fixed=(0.5, 1, 9), embed=(2, 1, 9), layer=(3, 4, 9), head=(2, 7, 9),
)  # fmt: skip


DIVIDED = PROFILE.model_copy(update={"attention": (1, 3, 3)})


def test_costs_are_shares_of_a_fair_stage_at_each_usual_number_of_rows() -> None:
    one, sixteen = PROFILE.costs(2, 2)  # a fair stage takes 0.5 + 10 / 2, and 1 + 16 / 2 ms
    assert (one.fixed, one.embed, one.head) == pytest.approx((0.5 / 5.5, 2 / 5.5, 2 / 5.5))
    assert one.layers == pytest.approx((3 / 5.5,) * 2)
    assert (sixteen.fixed, sixteen.embed, sixteen.head) == pytest.approx((1 / 9, 1 / 9, 7 / 9))
    assert sixteen.layers == pytest.approx((4 / 9,) * 2)
    assert one.attention == sixteen.attention == ()
    assert [costs.attention for costs in DIVIDED.costs(2, 2)] == [pytest.approx((1 / 5.5,) * 2), (3 / 9,) * 2]


def test_more_stages_have_fewer_rows_each() -> None:
    assert len(PROFILE.costs(2, 2)) == 2
    assert len(PROFILE.costs(4, 4)) == 1  # 32 users make groups of 8, and 16 rows are more


@given(st.integers(2, 12), st.integers(2, 3), st.lists(st.floats(0.1, 9), min_size=12, max_size=12))
def test_the_largest_relative_loss_is_as_small_as_can_be(depth: int, stages: int, times: list[float]) -> None:
    """Of all deals over halves, at the numbers of rows that 32 users make, against stages that are all alike."""
    stages = min(stages, depth)
    rows, (fixed, embed, head, attention) = (1, 4, 8), (times[3 * part : 3 * part + 3] for part in range(4))
    layer = [part + 1.0 for part in attention]
    profile = CostProfile(
        device="CPU", engine="openvino-paged", mode="fast", rows=rows,
        fixed=fixed, embed=embed, layer=layer, head=head, attention=attention,
    )  # fmt: skip

    def loss(edges: Sequence[float]) -> float:
        return max(
            slowest / (fixed[i] + (embed[i] + depth * layer[i] + head[i]) / stages)
            for i, (_, slowest) in enumerate(profile.step_times(edges))
        )

    places = [half / 2 for half in range(1, 2 * depth)]
    splits = ((0, *cuts, depth) for cuts in combinations(places, stages - 1))
    losses = [loss(split) for split in splits if all(end - begin >= 1 for begin, end in pairwise(split))]
    assert loss(balance(profile.costs(depth, stages), stages)) == pytest.approx(min(losses))


def test_a_measurement_lost_in_noise_deals_layers_evenly() -> None:
    nothing = PROFILE.model_copy(update=dict.fromkeys(("embed", "layer", "head"), (0, 0, 0)))
    assert balance(nothing.costs(6, 3), 3) == (0, 2, 4, 6)


def test_the_slowest_stage_makes_the_step_times() -> None:
    assert PROFILE.step_times((0, 2)) == ((1, 10.5), (16, 17), (64, 45))
    assert PROFILE.step_times((0, 1, 3)) == ((1, 8.5), (16, 16), (64, 36))


def test_a_divided_layer_counts_on_both_sides() -> None:
    # 0.5 + 2 + 3 + 1 and 0.5 + 2 + 3 + 2; 1 + 1 + 4 + 3 and 1 + 1 + 4 + 7; 9 + 9 + 9 + 3 and 9 + 6 + 9 + 9
    assert DIVIDED.step_times((0, 1.5, 3)) == ((1, 7.5), (16, 13), (64, 33))
    assert DIVIDED.step_times((0, 1, 3)) == PROFILE.step_times((0, 1, 3))
    assert DIVIDED.step_times((0, 1.5, 2.5, 4)) == ((1, 7.5), (16, 13), (64, 33))


@pytest.mark.parametrize(
    "wrong, what",
    [
        ({"rows": ()}, "must grow"),
        ({"rows": (0, 16, 64)}, "must grow"),
        ({"rows": (1, 64, 16)}, "must grow"),
        ({"layer": (3, 4)}, "layer must have a time"),
        ({"head": (2, float("nan"), 9)}, "head must have a time"),
        ({"embed": (2, -1, 9)}, "embed must have a time"),
        ({"attention": (1, 2)}, "attention must have a time"),
        ({"attention": (1, 5, 9)}, "attention cannot take longer"),
    ],
)
def test_a_profile_that_nothing_can_be_planned_with_is_refused(wrong: dict[str, tuple[float, ...]], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        CostProfile.model_validate(PROFILE.model_dump() | wrong)


def test_a_model_too_small_to_be_measured_is_refused(tiny_package: Path, tmp_path: Path) -> None:
    package = Path(shutil.copytree(tiny_package, tmp_path / "package"))
    raw = json.loads((package / manifests.MANIFEST).read_text("utf-8"))
    raw["facts"]["layers"], raw["spans"]["layers"] = 3, raw["spans"]["layers"][:3]
    (package / manifests.MANIFEST).write_text(json.dumps(raw), "utf-8")
    with pytest.raises(ConfigurationError, match="a model of 3 layers is too small to be measured"):
        measure(StageConfig(package=package, first_layer=0, end_layer=1))


@pytest.mark.parametrize(
    ("divided", "share"), [((2.5, 4.0, 3.0), 0.25), ((0.5, 1.0, 1.0), 0.0), ((9.0, 9.0, 9.0), 1.0)]
)
def test_an_attention_is_a_share_of_its_layer(divided: tuple[float, ...], share: float) -> None:
    layer = (2.0, 4.0, 8.0)
    assert _attention(divided, (2.0, 3.0, 4.0), layer) == pytest.approx(tuple(share * time for time in layer))


@pytest.mark.parametrize(
    ("one", "more", "layer"), [(1.0, 2.5, 0.5), (1.0, 1.9, 0.3), (2.0, 1.9, 0.475), (1.9, 1.9, 0.475)]
)
def test_a_layer_takes_some_time_whatever_else_was_running(one: float, more: float, layer: float) -> None:
    assert _layer_time(one, more, 4) == pytest.approx(layer)
