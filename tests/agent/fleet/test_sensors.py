from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from agent.fleet.node.sensors import LoadMeter, temperature


def sensors(*degrees: float | None) -> list[Any]:
    return [SimpleNamespace(label="", current=current) for current in degrees]


@pytest.mark.parametrize(
    ("found", "hottest"),
    [
        ({}, None),
        ({"coretemp": sensors(51.0, 63.0), "nvme": sensors(80.0)}, 63.0),
        ({"k10temp": sensors(48.5), "amdgpu": sensors(71.0)}, 71.0),
        ({"xe": sensors(55.0), "iwlwifi_1": sensors(60.0)}, 55.0),
        ({"cpu_thermal": sensors(None, -128.0, 42.0, 255.0)}, 42.0),
        ({"acpitz": sensors(27.8)}, None),
    ],
)
def test_the_hottest_of_processor_and_gpu_counts(
    found: dict[str, list[Any]], hottest: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: found, raising=False)
    assert temperature() == hottest


def test_a_system_that_tells_no_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> dict[str, list[Any]]:
        raise OSError("a driver")

    monkeypatch.setattr(psutil, "sensors_temperatures", broken, raising=False)
    assert temperature() is None
    monkeypatch.delattr(psutil, "sensors_temperatures")
    assert temperature() is None


def times(**seconds: float) -> Any:
    return SimpleNamespace(_asdict=lambda: seconds)


def test_load_is_that_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"user": 100.0, "system": 50.0, "idle": 850.0, "iowait": 10.0}
    monkeypatch.setattr(psutil, "cpu_times", lambda: times(**now))
    meter = LoadMeter()
    assert meter.look() is None  # nothing has passed
    now["user"] += 3.0
    now["idle"] += 9.0
    assert meter.look() == pytest.approx(0.25)
    now["user"] += 0.1  # too soon
    assert meter.look() == pytest.approx(0.25)
    now["user"] += 1.9
    assert meter.look() == pytest.approx(1.0)
    now["iowait"] += 4.0
    assert meter.look() == 0.0
    now["idle"] -= 500.0  # the clocks went back
    assert meter.look() == 0.0
    now["user"] += 2.0
    assert meter.look() == pytest.approx(1.0)


def test_guests_do_not_count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"user": 100.0, "idle": 100.0, "guest": 80.0, "guest_nice": 0.0}
    monkeypatch.setattr(psutil, "cpu_times", lambda: times(**now))
    meter = LoadMeter()
    now.update(user=110.0, idle=110.0, guest=90.0)
    assert meter.look() == pytest.approx(0.5)


def test_this_pc() -> None:
    meter = LoadMeter()
    load = meter.look()
    assert load is None or 0 <= load <= 1
    found = temperature()
    assert found is None or 0 < found < 150
