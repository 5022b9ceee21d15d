"""The accelerators the operating system knows of, whatever OpenVINO sees of them.

What a GPU needs on Linux: a kernel driver (i915 or xe) that makes /dev/dri/renderD*, rights to open it, an OpenCL
loader (OpenVINO's plugin is linked to it) and Intel's compute runtime behind it. An NPU: the kernel driver intel_vpu,
which makes /dev/accel/accel*, rights, and the Level Zero loader with Intel's NPU library behind it.
"""

from __future__ import annotations

import ctypes.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent.fleet.node.system import display_adapters, powershell

_INTEL = "0x8086"
_GPU_CLASS, _NPU_CLASS = "0x03", "0x1200"
"""How the PCI classes of display controllers and of processing accelerators begin."""
_NPU_LIBRARIES = {
    "ze_loader": "the Level Zero loader (libze1)",
    "ze_intel_npu": "Intel's NPU driver (intel-level-zero-npu)",
}
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A GPU or NPU."""

    name: str
    driver: str | None
    """Kernel driver on Linux, driver version on Windows; None: it has none."""


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """What a program opens to use an adapter."""

    path: str
    group: str
    usable: bool
    """This user may open it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """All GPUs, or all NPUs."""

    adapters: tuple[Adapter, ...] = ()
    files: tuple[DeviceFile, ...] = ()
    missing: tuple[str, ...] = ()
    """Libraries OpenVINO needs for them that are not installed."""


@dataclass(frozen=True, slots=True)
class SystemDevices:
    """Facts."""

    place: Literal["linux", "container", "wsl", "windows", "other"]
    gpu: Kind = Kind()
    npu: Kind = Kind()
    has_dxg: bool = False
    """WSL passes on the GPU of Windows."""


def system_devices() -> SystemDevices:
    """Look at this PC."""
    if sys.platform == "win32":
        gpus = tuple(Adapter(*adapter) for adapter in display_adapters() if "Intel" in adapter[0])
        return SystemDevices("windows", Kind(gpus), Kind(_windows_npus()))
    if sys.platform != "linux":
        return SystemDevices("other")
    gpu_missing = _missing({"OpenCL": "the OpenCL loader (ocl-icd-libopencl1)"})
    if not _has_opencl_driver():
        gpu_missing = ("Intel's compute runtime (intel-opencl-icd)", *gpu_missing)
    return SystemDevices(
        _place(),
        Kind(_pci(_GPU_CLASS), _files("/dev/dri", "renderD*"), gpu_missing),
        Kind(_pci(_NPU_CLASS), _files("/dev/accel", "accel*"), _missing(_NPU_LIBRARIES)),
        has_dxg=Path("/dev/dxg").exists(),
    )


def _place() -> Literal["linux", "container", "wsl"]:
    if any(Path(mark).exists() for mark in _CONTAINER_MARKS):
        return "container"
    return "wsl" if "microsoft" in _read(Path("/proc/sys/kernel/osrelease")).lower() else "linux"


def _pci(device_class: str) -> tuple[Adapter, ...]:
    """Intel's devices of a class. Containers see them too, whether they may use them or not."""
    found = []
    for device in sorted(Path("/sys/bus/pci/devices").glob("*")):
        if _read(device / "vendor") == _INTEL and _read(device / "class").startswith(device_class):
            driver = device / "driver"
            number = _read(device / "device").removeprefix("0x")
            found.append(Adapter(f"8086:{number} at {device.name}", driver.resolve().name if driver.exists() else None))
    return tuple(found)


def _files(folder: str, pattern: str) -> tuple[DeviceFile, ...]:
    return tuple(
        DeviceFile(str(path), _group(path), os.access(path, os.R_OK | os.W_OK))
        for path in sorted(Path(folder).glob(pattern))
    )


def _missing(libraries: dict[str, str]) -> tuple[str, ...]:
    return tuple(what for name, what in libraries.items() if ctypes.util.find_library(name) is None)


def _group(path: Path) -> str:
    try:
        return path.group()
    except KeyError:  # a container often lacks the group's name
        return str(path.stat().st_gid)


def _has_opencl_driver() -> bool:
    return any("igdrcl" in _read(vendor) for vendor in Path("/etc/OpenCL/vendors").glob("*.icd"))


def _windows_npus() -> tuple[Adapter, ...]:
    names = "DeviceName LIKE '%AI Boost%' OR DeviceName LIKE '%Intel%NPU%'"
    found = powershell(f'Get-CimInstance Win32_PnPSignedDriver -Filter "{names}" | Select DeviceName,DriverVersion')
    return tuple(Adapter(str(entry.get("DeviceName")), entry.get("DriverVersion")) for entry in found)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace").strip()
    except OSError:
        return ""
