from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from fake_openvino import FakeCore, laptop_with_an_arc

from agent.fleet.control.messages import Device, Hardware
from agent.fleet.node import hardware as looked_at
from agent.fleet.node import system
from agent.fleet.node.hardware import (
    RESERVE_BYTES,
    choose_device,
    condition,
    describe_devices,
    hardware,
    see_devices,
)
from shards.errors import ConfigurationError, StageError


@pytest.fixture
def forgetful() -> Iterator[None]:
    """What was found before is forgotten, and what is found here is too."""
    hardware.cache_clear()
    yield
    hardware.cache_clear()


def pc(*devices: Device) -> Hardware:
    return Hardware(processor="some", cores=4, memory=16 * 2**30, devices=devices, is_laptop=False)


CPU = Device(name="CPU", full_name="some processor")
GPU = Device(name="GPU", full_name="an iGPU")
IGPU = Device(name="GPU.0", full_name="an iGPU")
SMALL_GPU = Device(name="GPU.1", full_name="a dGPU", memory=8 * 2**30)
LARGE_GPU = Device(name="GPU.2", full_name="a larger dGPU", memory=16 * 2**30)
NPU = Device(name="NPU", full_name="an NPU")


def test_this_pc(forgetful: None) -> None:
    found = hardware()
    assert found.devices[0].name == "CPU"
    assert found.devices[0].full_name
    assert found.processor
    assert 1 <= found.cores <= (psutil.cpu_count() or 1)
    assert found.memory == psutil.virtual_memory().total
    assert hardware() is found


def test_devices_in_full() -> None:
    cpu, integrated, discrete, npu = describe_devices(laptop_with_an_arc())
    assert cpu == Device(name="CPU", full_name="Intel(R) Core(TM) Ultra 7 155H")
    assert (integrated.name, integrated.memory) == ("GPU.0", None)
    assert (discrete.full_name, discrete.memory) == ("Intel(R) Arc(TM) A770 Graphics (dGPU)", 16_225_243_136)
    assert (npu.name, npu.memory, npu.driver) == ("NPU", None, "1688")


def test_a_device_that_tells_nothing_is_listed_all_the_same() -> None:
    assert describe_devices(FakeCore({"GPU": {}, "NPU": {}})) == (
        Device(name="GPU", full_name="GPU"),
        Device(name="NPU", full_name="NPU"),
    )


@pytest.mark.parametrize(
    "program",
    [
        "import os; os.abort()",
        "print('no devices, but a line of a driver')",
        "raise RuntimeError('a plugin failed')",
        "import time; time.sleep(60)",
    ],
)
def test_drivers_that_crash_or_hang_cost_their_devices_only(
    program: str, forgetful: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = subprocess.run

    def crash(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        assert command[0] == sys.executable
        return run([sys.executable, "-c", program], **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(looked_at.subprocess, "run", crash)
    monkeypatch.setattr(looked_at, "_SECONDS", 1.5)
    with pytest.raises(StageError, match="could not list the devices") as caught:
        see_devices()
    assert caught.value.hint
    assert [device.name for device in hardware().devices] == ["CPU"]
    assert "could not list the devices" in caplog.text


def test_lines_that_drivers_print_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    said = '[INFO] a driver\n[{"name":"CPU","full_name":"some"}]\n'
    done = subprocess.CompletedProcess([], 0, said, "")
    monkeypatch.setattr(looked_at.subprocess, "run", lambda *_, **__: done)
    assert see_devices() == (Device(name="CPU", full_name="some"),)


def test_condition(tmp_path: Path) -> None:
    found = condition(None, tmp_path / "not" / "made" / "yet")
    total = psutil.virtual_memory().total
    assert 0 < found.memory_free <= total
    assert 0 <= found.memory_allowed <= total
    assert found.disk_free > 0
    assert condition(2**30, tmp_path).memory_allowed == 2**30
    assert condition(2**60, tmp_path).memory_allowed == total


def test_stages_that_run_do_not_lessen_what_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(available=8 * 2**30, total=16 * 2**30)
    monkeypatch.setattr(looked_at.psutil, "virtual_memory", lambda: memory)
    before = condition(None, tmp_path).memory_allowed
    held = 3 * 10**8
    program = f"held = bytes([1]) * {held}; print(flush=True); input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        allowed = condition(None, tmp_path).memory_allowed
        child.communicate("\n")
    assert held < allowed - before < held + 10**8


def test_a_pc_without_free_memory_allows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(available=RESERVE_BYTES // 2, total=2**34)
    monkeypatch.setattr(looked_at.psutil, "virtual_memory", lambda: memory)
    assert condition(None, tmp_path).memory_allowed == 0


@pytest.mark.parametrize(
    ("battery", "level", "on_mains"),
    [
        (None, None, True),
        (SimpleNamespace(percent=40, power_plugged=False), 0.4, False),
        (SimpleNamespace(percent=255, power_plugged=None), 1.0, True),
    ],
)
def test_battery(
    battery: object, level: float | None, on_mains: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looked_at.psutil, "sensors_battery", lambda: battery, raising=False)
    found = condition(None, tmp_path)
    assert (found.battery, found.on_mains) == (level, on_mains)


@pytest.mark.parametrize(
    ("there", "wanted", "chosen"),
    [
        ([CPU], "AUTO", "CPU"),
        ([CPU], "cpu", "CPU"),
        ([CPU, NPU], "AUTO", "CPU"),
        ([CPU, NPU], "NPU", "NPU"),
        ([CPU, GPU, NPU], "auto", "GPU"),
        ([CPU, GPU], "GPU", "GPU"),
        ([CPU, GPU], "GPU.0", "GPU"),
        ([CPU, IGPU, SMALL_GPU, LARGE_GPU], "AUTO", "GPU.2"),
        ([CPU, IGPU, SMALL_GPU, LARGE_GPU], "GPU", "GPU.2"),
        ([CPU, IGPU, SMALL_GPU, LARGE_GPU], "gpu.0", "GPU.0"),
        ([CPU, IGPU, SMALL_GPU, LARGE_GPU], "GPU.1", "GPU.1"),
    ],
)
def test_choose_device(there: list[Device], wanted: str, chosen: str) -> None:
    assert choose_device(pc(*there), wanted) == chosen


@pytest.mark.parametrize(
    ("there", "wanted"),
    [([CPU], "GPU"), ([CPU], "NPU"), ([CPU, GPU], "GPU.1"), ([CPU, IGPU], "GPU.1"), ([CPU], "TPU"), ([CPU], "")],
)
def test_a_device_that_is_not_there(there: list[Device], wanted: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        choose_device(pc(*there), wanted)
    for device in there:
        assert device.name in caught.value.what
    assert "doctor" in str(caught.value.hint)


def test_what_a_tool_prints() -> None:
    assert system.command(sys.executable, "-c", "print('hello')") == "hello\n"
    assert system.command(sys.executable, "-c", "raise SystemExit(1)") is None
    assert system.command("no-such-tool-anywhere") is None


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ('[{"Name":"Intel(R) Arc(TM) Graphics","DriverVersion":"32.0.101.6078"},{"Name":null}]', 1),
        ("[]", 0),
        ("", 0),
        ("not JSON", 0),
        ("{}", 0),
        (None, 0),
    ],
)
def test_what_powershell_says(printed: str | None, found: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "command", lambda *_: printed)
    assert len(system.display_adapters()) == found
