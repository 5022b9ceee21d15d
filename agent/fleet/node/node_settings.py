"""What a user gives of a PC to its fleet."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from agent.fleet.control.messages import Hardware
from agent.fleet.node.hardware import choose_device
from shards.runtime import StageConfig

AUTO = "AUTO"


class NodeSettings(BaseModel):
    """What a node may use, and how it is called."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str = Field(AUTO, description="AUTO, CPU, GPU, NPU, or OpenVINO's name of a device, e.g. GPU.1")
    memory: int | None = Field(None, gt=0, description="bytes its stages may take, all together; None: what is free")
    threads: int | None = Field(None, gt=0, description="inference threads a stage; None: the engine chooses")
    cores: tuple[int, ...] | None = Field(None, min_length=1, description="processor numbers stages are pinned to")
    name: str | None = Field(None, min_length=1, max_length=63, description="None: the PC's own")

    def apply(self, config: StageConfig, package: Path, hardware: Hardware) -> StageConfig:
        """What the head has planned, on this PC: its own folder, and its own choice where the head has made none.

        Raises:
            ConfigurationError: the PC has not the device.
        """
        wanted = self.device if config.device.upper() == AUTO else config.device
        return config.model_copy(
            update={
                "package": package,
                "device": choose_device(hardware, wanted),
                "threads": config.threads or self.threads,
                "cores": config.cores or self.cores,
            }
        )
