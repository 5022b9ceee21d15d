from __future__ import annotations

import pytest

from agent.doctor import devices
from agent.doctor.devices import judge
from agent.doctor.system_devices import Adapter, DeviceFile, Kind, SystemDevices, system_devices
from agent.fleet.control.messages import Device
from shards.errors import StageError

CPU = Device(name="CPU", full_name="some processor")
GPU = Device(name="GPU", full_name="an iGPU", driver="1.6.33578")
IGPU = Device(name="GPU.0", full_name="an iGPU")
DGPU = Device(name="GPU.1", full_name="a dGPU", memory=16 * 10**9)
NPU = Device(name="NPU", full_name="an NPU", driver="1688")

ADAPTER = Adapter("8086:7d55 at 0000:00:02.0", "i915")
RENDER = DeviceFile("/dev/dri/renderD128", "render", usable=True)
CLOSED = DeviceFile("/dev/dri/renderD128", "render", usable=False)
ACCEL = DeviceFile("/dev/accel/accel0", "render", usable=True)
RUNTIME = "Intel's compute runtime (intel-opencl-icd)"


def test_all_is_seen() -> None:
    system = SystemDevices("linux", Kind((ADAPTER, ADAPTER), (RENDER, RENDER)), Kind((ADAPTER,), (ACCEL,)))
    checks = judge((CPU, IGPU, DGPU, NPU), system)
    assert [check.status for check in checks] == ["ok"] * 4
    assert "16.0 GB of its own" in checks[2].what
    assert "driver 1688" in checks[3].what


def test_a_pc_without_a_gpu() -> None:
    checks = judge((CPU,), SystemDevices("linux"))
    assert [check.status for check in checks] == ["ok", "ok"]
    assert "no Intel GPU" in checks[1].what


@pytest.mark.parametrize(
    ("place", "gpu", "status", "why", "step"),
    [
        # in the order in which causes hide one another
        ("container", Kind((ADAPTER,), (), (RUNTIME,)), "fault", "no /dev/dri", "--device /dev/dri"),
        ("linux", Kind((Adapter("8086:e20b", None),)), "fault", "no driver", "i915 or xe"),
        ("linux", Kind((Adapter("8086:56a0", "vfio-pci"),)), "fault", "vfio-pci", "i915 or xe"),
        ("linux", Kind((ADAPTER,)), "fault", "there is no /dev/dri", "dmesg"),
        ("linux", Kind((ADAPTER,), (CLOSED,), (RUNTIME,)), "fault", "may not open", "usermod -aG render"),
        ("container", Kind((ADAPTER,), (CLOSED,)), "fault", "may not open", "--group-add render"),
        ("linux", Kind((ADAPTER,), (RENDER,), (RUNTIME,)), "fault", "compute runtime", "apt install intel-opencl-icd"),
        ("linux", Kind((ADAPTER,), (RENDER,)), "warning", "seems to be there", "intel-opencl-icd-legacy"),
        ("windows", Kind((Adapter("Intel(R) Arc(TM) Graphics", "32.0.1"),)), "fault", "Intel(R) Arc", "Windows Update"),
    ],
)
def test_a_gpu_that_is_there_but_invisible(place: str, gpu: Kind, status: str, why: str, step: str) -> None:
    checks = judge((CPU,), SystemDevices(place, gpu))  # type: ignore[arg-type]
    assert [check.status for check in checks] == ["ok", status]
    assert "does not see 1 of 1 Intel GPUs" in checks[1].what
    assert why in checks[1].what
    assert step in (checks[1].next_step or "")


def test_one_of_two_gpus_is_invisible() -> None:
    checks = judge((CPU, GPU), SystemDevices("linux", Kind((ADAPTER, ADAPTER), (RENDER, CLOSED))))
    assert [check.status for check in checks] == ["ok", "ok", "fault"]
    assert "1 of 2" in checks[2].what


@pytest.mark.parametrize(
    ("npu", "why", "step"),
    [
        (Kind((Adapter("8086:7d1d", None),)), "no driver", "intel_vpu"),
        (
            Kind((Adapter("8086:7d1d", "intel_vpu"),), (ACCEL,), ("Intel's NPU driver",)),
            "NPU driver",
            "linux-npu-driver",
        ),
        (Kind((Adapter("8086:7d1d", "intel_vpu"),), (ACCEL,)), "seems to be there", "Update"),
    ],
)
def test_an_invisible_npu_is_a_warning(npu: Kind, why: str, step: str) -> None:
    checks = judge((CPU, GPU), SystemDevices("linux", Kind((ADAPTER,), (RENDER,)), npu))
    assert [check.status for check in checks] == ["ok", "ok", "warning"]
    assert why in checks[2].what
    assert step in (checks[2].next_step or "")


def test_wsl() -> None:
    system = SystemDevices("wsl", has_dxg=True)
    checks = judge((CPU,), system)
    assert [check.status for check in checks] == ["ok", "warning"]
    assert "in Windows" in (checks[1].next_step or "")
    assert [check.status for check in judge((CPU, GPU), system)] == ["ok", "ok"]


def test_when_openvino_crashes_that_is_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash() -> None:
        raise StageError("OpenVINO could not list the devices", hint="Update the driver.")

    monkeypatch.setattr(devices, "see_devices", crash)
    (check,) = devices.check()
    assert (check.status, check.next_step) == ("fault", "Update the driver.")


def test_this_pc_can_be_looked_at() -> None:
    assert isinstance(system_devices(), SystemDevices)
    assert any(check.what.startswith("CPU: ") for check in devices.check())
