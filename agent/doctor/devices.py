"""What OpenVINO sees, against what the PC has: a GPU that is there but invisible is what costs most speed unnoticed."""

from __future__ import annotations

from agent.doctor.check import Check, Status
from agent.doctor.system_devices import Kind, SystemDevices, system_devices
from agent.fleet.control.messages import Device
from agent.fleet.node.hardware import see_devices
from shards.errors import StageError

_TOPIC = "devices"
_KERNEL_DRIVERS = {"GPU": ("i915", "xe"), "NPU": ("intel_vpu",)}
_FOLDERS = {"GPU": "/dev/dri", "NPU": "/dev/accel"}
_KERNELS = {"GPU": "6.2 or newer for an Arc", "NPU": "6.6 or newer"}
"""Versions of Linux that OpenVINO's documentation asks for."""


def check() -> list[Check]:
    """Look at this PC."""
    try:
        seen = see_devices()
    except StageError as error:
        return [Check(_TOPIC, "fault", error.what, error.hint), *judge((), system_devices(), listed=False)]
    return judge(seen, system_devices())


def judge(seen: tuple[Device, ...], system: SystemDevices, *, listed: bool = True) -> list[Check]:
    """What is seen, then what is missing; not `listed`: OpenVINO failed, so that nothing is seen says nothing."""
    checks = [Check(_TOPIC, "ok", _describe(device)) for device in seen]
    if not listed:
        return checks
    names = [device.name.split(".")[0] for device in seen]
    for name, kind in (("GPU", system.gpu), ("NPU", system.npu)):
        unseen = len(kind.adapters) - names.count(name)
        if unseen > 0:
            checks.append(_explain(name, kind, system.place, unseen))
    if system.place == "wsl" and system.has_dxg and "GPU" not in names:
        checks.append(
            Check(
                _TOPIC,
                "warning",
                "Windows passes a GPU on to WSL, but OpenVINO does not see it",
                "If it is Intel's: update its driver in Windows and install intel-opencl-icd here, or run edge-agent in"
                " Windows, where an NPU works too.",
            )
        )
    if "GPU" not in names and not system.gpu.adapters and not system.has_dxg:
        checks.append(Check(_TOPIC, "ok", "no Intel GPU in this PC: stages run on the CPU"))
    return checks


def _describe(device: Device) -> str:
    extras = [f"{device.memory / 1e9:.1f} GB of its own"] if device.memory else []
    extras += [f"driver {device.driver}"] if device.driver else []
    return f"{device.name}: {device.full_name}" + (f" ({', '.join(extras)})" if extras else "")


def _explain(name: str, kind: Kind, place: str, unseen: int) -> Check:
    """Why adapters are not seen: the first cause, in the order in which they hide one another."""
    which = ", ".join(adapter.name for adapter in kind.adapters)
    what = f"OpenVINO does not see {unseen} of {len(kind.adapters)} Intel {name}s of this PC ({which})"
    # without a GPU a PC is several times slower; an NPU is used on demand only
    known: Status = "fault" if name == "GPU" else "warning"
    folder = _FOLDERS[name]
    if place == "windows":
        step = f"Install Intel's driver for the {name} (from Windows Update, or Intel's site), then restart."
        return Check(_TOPIC, known, what, step)
    if not kind.files:
        if place == "container":
            step = f"Start the container with --device {folder}"
            return Check(_TOPIC, known, f"{what}: this container has no {folder}", step)
        without = [adapter for adapter in kind.adapters if adapter.driver not in _KERNEL_DRIVERS[name]]
        if without:
            drivers = " or ".join(_KERNEL_DRIVERS[name])
            driver = without[0].driver
            has = f"the kernel uses {driver} for it" if driver else "the kernel has no driver for it"
            step = f"It needs {drivers}: try Linux {_KERNELS[name]}, with its firmware (linux-firmware)."
            return Check(_TOPIC, known, f"{what}: {has}", step)
        return Check(_TOPIC, known, f"{what}: there is no {folder}", "Restart the PC, and look at: sudo dmesg")
    closed = [file for file in kind.files if not file.usable]
    if closed:
        file = closed[0]
        step = f"sudo usermod -aG {file.group} $USER, then log in again"
        if place == "container":
            step = f"Start the container with --group-add {file.group}, a number if the container has no such group."
        return Check(_TOPIC, known, f"{what}: you may not open {file.path} (group {file.group})", step)
    if kind.missing:
        step = "Install it: sudo apt install intel-opencl-icd ocl-icd-libopencl1 (Fedora, Arch: intel-compute-runtime)"
        if name == "NPU":
            step = "Install the packages of https://github.com/intel/linux-npu-driver (Arch: intel-npu-driver)"
        return Check(_TOPIC, known, f"{what}: {' and '.join(kind.missing)} not found", step)
    step = "Update the driver packages, restart, and see what 'clinfo' says."
    if name == "GPU":
        step = f"If it is older than a Core of the 11th generation, install intel-opencl-icd-legacy. Else: {step}"
    return Check(_TOPIC, "warning", f"{what}, though all it needs seems to be there", step)
