"""A made-up `ov.Core` of a PC with more devices than the test machine has."""

from __future__ import annotations

from enum import Enum


class DeviceType(Enum):
    """As OpenVINO's Python package has it: str() gives 'DeviceType.DISCRETE' here, 'Type.DISCRETE' there."""

    INTEGRATED = 0
    DISCRETE = 1


class FakeCore:
    """Answers for what OpenVINO's documentation says its plugins know, and raises RuntimeError for the rest."""

    def __init__(self, devices: dict[str, dict[str, object]]) -> None:
        self._devices = devices

    @property
    def available_devices(self) -> list[str]:
        return list(self._devices)

    def get_property(self, device: str, name: str) -> object:
        try:
            return self._devices[device][name]
        except KeyError:
            raise RuntimeError(f"Cannot get unsupported property: {name}") from None


def laptop_with_an_arc() -> FakeCore:
    return FakeCore(
        {
            "CPU": {"FULL_DEVICE_NAME": "Intel(R) Core(TM) Ultra 7 155H", "DEVICE_TYPE": DeviceType.INTEGRATED},
            "GPU.0": {
                "FULL_DEVICE_NAME": "Intel(R) Arc(TM) Graphics (iGPU)",
                "DEVICE_TYPE": DeviceType.INTEGRATED,
                "GPU_DEVICE_TOTAL_MEM_SIZE": 33_000_000_000,
            },
            "GPU.1": {
                "FULL_DEVICE_NAME": "Intel(R) Arc(TM) A770 Graphics (dGPU)",
                "DEVICE_TYPE": DeviceType.DISCRETE,
                "GPU_DEVICE_TOTAL_MEM_SIZE": 16_225_243_136,
            },
            "NPU": {
                "FULL_DEVICE_NAME": "Intel(R) AI Boost",
                "DEVICE_TYPE": DeviceType.INTEGRATED,
                "NPU_DEVICE_TOTAL_MEM_SIZE": 33_000_000_000,
                "NPU_DRIVER_VERSION": 1688,
            },
        }
    )
