"""What a user gives of a PC to its fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from agent.fleet.control.messages import Hardware
from agent.fleet.node.hardware import choose_device
from shards.errors import ConfigurationError
from shards.llamacpp import binding
from shards.runtime import EngineKind, StageConfig

AUTO = "AUTO"

EngineChoice = Literal["auto", "openvino", "llamacpp"]
"""What a user wants a PC to run layers with; auto: whichever of those that are installed is the best for a plan."""


class NodeSettings(BaseModel):
    """What a node may use, and how it is called."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str = Field(AUTO, description="AUTO, CPU, GPU, NPU, or OpenVINO's name of a device, e.g. GPU.1")
    engine: EngineChoice = "auto"
    memory: int | None = Field(None, gt=0, description="bytes its stages may take, all together; None: what is free")
    threads: int | None = Field(None, gt=0, description="inference threads a stage; None: the engine chooses")
    cores: tuple[int, ...] | None = Field(None, min_length=1, description="processor numbers stages are pinned to")
    name: str | None = Field(None, min_length=1, max_length=63, description="None: the PC's own")

    def engines(self) -> tuple[EngineKind, ...]:
        """What this PC offers to run layers with. llama.cpp runs on the processor, which a user may not want to give.

        Raises:
            ConfigurationError: llama.cpp is wanted, and not installed or not for that device.
        """
        gives_processor = self.device.upper() in (AUTO, "CPU")
        if self.engine == "llamacpp":
            if not gives_processor:
                raise ConfigurationError(
                    f"llama.cpp runs on the CPU, not on {self.device}",
                    where="--engine",
                    hint="Leave --device out, or use OpenVINO.",
                )
            if not binding.is_installed():
                raise ConfigurationError(
                    f"{binding.PACKAGE} is not installed", where="--engine", hint=f"Run: {binding.INSTALL}"
                )
            return ("llamacpp",)
        if self.engine == "openvino" or not gives_processor or not binding.is_installed():
            return ("openvino",)
        return ("openvino", "llamacpp")

    def apply(self, config: StageConfig, package: Path, hardware: Hardware) -> StageConfig:
        """What the head has planned, on this PC: its own folder, and its own choice where the head has made none.

        Raises:
            ConfigurationError: the PC has not the device.
        """
        wanted = self.device if config.device.upper() == AUTO else config.device
        device = "CPU" if config.engine == "llamacpp" else choose_device(hardware, wanted)
        return config.model_copy(
            update={
                "package": package,
                "device": device,
                "threads": config.threads or self.threads,
                "cores": config.cores or self.cores,
            }
        )
