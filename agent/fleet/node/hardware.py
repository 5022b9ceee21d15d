"""What a PC has, how it is doing, and which of its devices to use.

Run as a module, it prints the devices OpenVINO sees as one line of JSON: drivers that crash when they are looked at are
no rarity, and so they crash a child process. GPU and NPU properties are read as OpenVINO documents them
(https://docs.openvino.ai: properties `ov::device::type`, `ov::intel_gpu::device_total_mem_size`,
`ov::intel_npu::driver_version`).
"""

from __future__ import annotations

import functools
import logging
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter, ValidationError

from agent.fleet.control.messages import Condition, Device, Hardware
from agent.fleet.node import system
from agent.fleet.node.sensors import temperature
from shards import power
from shards.errors import ConfigurationError, StageError

RESERVE_BYTES = 2**30
"""Of the free memory, what stages leave to the other programs of the PC unless --memory says otherwise."""

_SECONDS = 20.0
_DEVICES = TypeAdapter(tuple[Device, ...])
_log = logging.getLogger(__name__)


@functools.cache
def hardware() -> Hardware:
    """What this PC has; looked up once a process. A PC whose devices can't be listed still has its processor."""
    processor = _processor()
    try:
        devices = see_devices()
    except StageError as error:
        _log.warning("%s", error)
        devices = (Device(name="CPU", full_name=processor),)
    return Hardware(
        processor=processor,
        cores=psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        memory=psutil.virtual_memory().total,
        devices=devices,
        is_laptop=power.battery() is not None,
    )


def see_devices() -> tuple[Device, ...]:
    """The devices OpenVINO sees, asked in a process of its own.

    Raises:
        StageError: that process crashed or hung.
    """
    what, hint = "OpenVINO could not list the devices of this PC", "Update or remove the driver of the GPU or NPU."
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "agent.fleet.node.hardware"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise StageError(f"{what} within {_SECONDS:.0f} s", where="devices", hint=hint) from None
    except OSError as error:
        raise StageError(f"{what}: no process can be started ({error})", where="devices") from None
    try:
        return _DEVICES.validate_json((done.stdout.splitlines() or [""])[-1])  # drivers print before it
    except ValidationError:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise StageError(f"{what} (exit code {done.returncode}: {said})", where="devices", hint=hint) from None


def describe_devices(core: Any) -> tuple[Device, ...]:
    """What an `ov.Core` says of its devices."""
    return tuple(
        Device(
            name=name,
            full_name=str(_property(core, name, "FULL_DEVICE_NAME") or name),
            memory=_own_memory(core, name),
            driver=_driver(core, name),
        )
        for name in core.available_devices
    )


def condition(memory_allowed: int | None, folder: Path, load: float | None = None) -> Condition:
    """How this PC is doing.

    Args:
        memory_allowed: Bytes the user gives to stages; None: the free memory but for RESERVE_BYTES. What this process'
            children, the stages, hold by now counts as free: they may keep it.
        folder: Where weights are kept; need not exist yet.
        load: How busy its processors are, where that was measured.
    """
    memory, battery = psutil.virtual_memory(), power.battery()
    if memory_allowed is None:
        memory_allowed = max(0, memory.available + _held_by_children() - RESERVE_BYTES)
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    return Condition(
        memory_free=memory.available,
        memory_allowed=min(memory_allowed, memory.total),
        disk_free=shutil.disk_usage(there).free,
        battery=None if battery is None else min(1.0, battery.percent / 100),
        on_mains=power.on_mains(battery),
        temperature=temperature(),
        load=load,
    )


def choose_device(hardware: Hardware, wanted: str) -> str:
    """OpenVINO's name of the device to use.

    AUTO is the GPU where there is one, an integrated one too: it reads weights as fast as the processor does and
    computes prompts several times faster. Otherwise it is the CPU, never the NPU: the paged engine, the default, does
    not run on it (it takes graphs of fixed shapes only), so an NPU is used when it is asked for. Of several GPUs, one
    with memory of its own is preferred, the largest first.

    Args:
        hardware: What there is.
        wanted: AUTO, CPU, GPU, NPU, or an exact name like GPU.1; in any case.

    Raises:
        ConfigurationError: it is not there.
    """
    wanted, names = wanted.upper(), [device.name for device in hardware.devices]
    if wanted in names:
        return wanted
    gpus = [device for device in hardware.devices if device.name.startswith("GPU")]
    if gpus and wanted in ("AUTO", "GPU"):
        return max(gpus, key=lambda device: device.memory or 0).name
    if wanted == "AUTO":
        return "CPU"
    if wanted.removesuffix(".0") in names:  # where there is one GPU, OpenVINO lists it without a number
        return wanted.removesuffix(".0")
    raise ConfigurationError(
        f"OpenVINO sees no device {wanted!r} here, only {', '.join(names) or 'none'}",
        where="--device",
        hint="Choose one of these or AUTO; edge-agent doctor says why a device is missing.",
    )


def _property(core: Any, device: str, name: str) -> Any:
    try:
        return core.get_property(device, name)
    except RuntimeError:  # the plugin does not know it
        return None


def _own_memory(core: Any, device: str) -> int | None:
    """Bytes on a discrete GPU; integrated ones, NPUs and processors use the PC's memory."""
    if not device.startswith("GPU") or "discrete" not in str(_property(core, device, "DEVICE_TYPE")).lower():
        return None
    memory = _property(core, device, "GPU_DEVICE_TOTAL_MEM_SIZE")
    return None if memory is None else int(memory)


def _driver(core: Any, device: str) -> str | None:
    """An NPU tells its driver's version, for a GPU the system does: on Windows; on Linux in a library's file name."""
    if device.startswith("NPU"):
        version = _property(core, device, "NPU_DRIVER_VERSION")
        return None if version is None else str(version)
    if not device.startswith("GPU"):
        return None
    if sys.platform == "win32":
        full_name = str(_property(core, device, "FULL_DEVICE_NAME"))
        return next((version for name, version in system.display_adapters() if full_name.startswith(name)), None)
    for library in Path("/usr").glob("lib*/**/libze_intel_gpu.so.1"):
        return library.resolve().name.partition(".so.")[2]
    return None


def _processor() -> str:
    if sys.platform == "win32":
        import winreg

        key = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as processor:
            return str(winreg.QueryValueEx(processor, "ProcessorNameString")[0]).strip()
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _held_by_children() -> int:
    """Bytes that would be free without our child processes; files they map don't count, they are free already."""
    held = 0
    for child in psutil.Process().children(recursive=True):
        try:
            memory = child.memory_info()
        except psutil.Error:
            continue
        held += min(memory.rss - getattr(memory, "shared", 0), getattr(memory, "private", memory.rss))
    return held


def _main() -> None:
    import openvino as ov

    print(_DEVICES.dump_json(describe_devices(ov.Core())).decode(), flush=True)


if __name__ == "__main__":
    _main()
