from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from zoo import LAYERS

from shards import tuning
from shards.loading import load_stage
from shards.runtime import StageConfig, StageRuntime
from shards.tuning import GROUP_SIZE, Tuned


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_ROUNDS", 1)
    monkeypatch.setattr(tuning, "_GROUP_SIZES", (0, 64))


def in_force(package: Path, cache: Path | None, **settings: Any) -> dict[str, str]:
    """Of the first layer, whose threads are given, so that they are not tried out."""
    settings = {"first_layer": 0, "end_layer": 1, "threads": 1} | settings
    stage = load_stage(StageConfig(package=package, **settings), cache=cache)
    stage.close()
    return stage.facts.properties


def test_what_was_found_is_kept_and_used_again(tiny_package: Path, tmp_path: Path) -> None:
    cache = tmp_path / "made" / "here"
    found = in_force(tiny_package, cache, threads=None)
    (file,) = cache.iterdir()
    kept = Tuned.model_validate_json(file.read_bytes())
    assert all(found[name] == str(value) for name, value in kept.properties.items())
    assert len(kept.milliseconds) > 1
    file.write_text(json.dumps({"properties": {GROUP_SIZE: 96}, "milliseconds": {}}), "utf-8")
    assert in_force(tiny_package, cache, threads=None)[GROUP_SIZE] == "96"
    assert list(cache.iterdir()) == [file]


@pytest.mark.parametrize("content", [b"\xff{", b'{"properties": {"THREADS": "many"}, "milliseconds": {}}'])
def test_a_damaged_result_is_measured_again(tiny_package: Path, tmp_path: Path, content: bytes) -> None:
    in_force(tiny_package, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    in_force(tiny_package, tmp_path)
    assert Tuned.model_validate_json(file.read_bytes()).milliseconds


def test_a_cache_that_cannot_be_written_does_not_matter(tiny_package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", "utf-8")
    assert GROUP_SIZE in in_force(tiny_package, tmp_path / "file" / "cache")


def test_other_layers_take_the_same_result_and_other_threads_do_not(tiny_package: Path, tmp_path: Path) -> None:
    in_force(tiny_package, tmp_path)
    in_force(tiny_package, tmp_path, first_layer=1, end_layer=LAYERS)
    assert len(list(tmp_path.iterdir())) == 1
    in_force(tiny_package, tmp_path, threads=2)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("settings", [{"mode": "exact"}, {"tune": False}])
def test_it_happens_only_where_asked_for(tiny_package: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    in_force(tiny_package, tmp_path, **settings)
    assert not list(tmp_path.iterdir())


def test_a_value_that_the_device_refuses_is_left_out(
    tiny_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_GROUP_SIZES", ("some", 64))
    in_force(tiny_package, tmp_path)
    (file,) = tmp_path.iterdir()
    tried = Tuned.model_validate_json(file.read_bytes()).milliseconds
    assert json.dumps({GROUP_SIZE: 64}) in tried
    assert json.dumps({GROUP_SIZE: "some"}) not in tried


def test_the_faster_wins_only_if_it_is_faster_by_more_than_noise(
    tiny_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_GROUP_SIZES", (0, 32, 64, 128))
    times = {"32": 1.0, "0": 3.0, "64": 0.5, "128": 0.99}

    def timed(stages: list[StageRuntime], rows: int, rounds: int) -> list[float]:
        return [times[stage.facts.properties[GROUP_SIZE]] for stage in stages]

    monkeypatch.setattr(tuning, "step_times", timed)
    assert in_force(tiny_package, tmp_path / "a")[GROUP_SIZE] == "64"
    times["64"] = 0.98
    assert in_force(tiny_package, tmp_path / "b")[GROUP_SIZE] == "32"
