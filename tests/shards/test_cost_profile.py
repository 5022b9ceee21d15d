from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pydantic import ValidationError
from zoo import LAYERS

from shards import manifest as manifests
from shards.balance import balance
from shards.errors import ConfigurationError
from shards.profile import CostProfile, _layer_time, measure
from shards.runtime import StageConfig


@pytest.mark.parametrize("engine", ["openvino-paged", "openvino-stateful"])
def test_the_parts_of_a_model_are_measured(tiny_package: Path, engine: str) -> None:
    told: list[float] = []
    config = StageConfig(package=tiny_package, first_layer=0, end_layer=1, engine=engine, tune=False)
    profile = measure(config, rows=(1, 3), progress=lambda what, done, total: told.append(done / total))
    assert (profile.rows, profile.device, profile.engine, profile.mode) == ((1, 3), "CPU", engine, "fast")
    assert all(layer >= 0 for part in (profile.fixed, profile.embed, profile.layer, profile.head) for layer in part)
    assert told == [step / 6 for step in range(7)]
    assert CostProfile.model_validate_json(profile.model_dump_json()) == profile
    assert balance(profile.costs(LAYERS), 2)[-1] == LAYERS


PROFILE = CostProfile(
    device="CPU", engine="openvino-paged", mode="fast", rows=(1, 16, 64),
    fixed=(0.5, 1, 9), embed=(2, 1, 9), layer=(3, 4, 9), head=(2, 7, 9),
)  # fmt: skip


def test_costs_are_mean_shares_over_the_usual_numbers_of_rows() -> None:
    costs = PROFILE.costs(2)  # a step of 1 row takes 10 ms, one of 16 rows 16 ms, and weighs a sixteenth as much
    assert costs.embed == pytest.approx((16 * 0.2 + 1 / 16) / 17)
    assert costs.layers == pytest.approx(((16 * 0.3 + 0.25) / 17,) * 2)
    assert costs.head == pytest.approx((16 * 0.2 + 7 / 16) / 17)


def test_a_measurement_lost_in_noise_deals_layers_evenly() -> None:
    nothing = PROFILE.model_copy(update=dict.fromkeys(("embed", "layer", "head"), (0, 0, 0)))
    assert balance(nothing.costs(6), 3) == (0, 2, 4, 6)


def test_the_slowest_stage_makes_the_step_times() -> None:
    assert PROFILE.step_times((0, 2)) == ((1, 10.5), (16, 17), (64, 45))
    assert PROFILE.step_times((0, 1, 3)) == ((1, 8.5), (16, 16), (64, 36))


@pytest.mark.parametrize(
    "wrong, what",
    [
        ({"rows": ()}, "must grow"),
        ({"rows": (0, 16, 64)}, "must grow"),
        ({"rows": (1, 64, 16)}, "must grow"),
        ({"layer": (3, 4)}, "layer must have a time"),
        ({"head": (2, float("nan"), 9)}, "head must have a time"),
        ({"embed": (2, -1, 9)}, "embed must have a time"),
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
    ("one", "more", "layer"), [(1.0, 2.5, 0.5), (1.0, 1.9, 0.3), (2.0, 1.9, 0.475), (1.9, 1.9, 0.475)]
)
def test_a_layer_takes_some_time_whatever_else_was_running(one: float, more: float, layer: float) -> None:
    assert _layer_time(one, more, 4) == pytest.approx(layer)
