"""What was measured on this machine, kept on disk so that it is measured once. Imports OpenVINO."""

from __future__ import annotations

import hashlib
import json
import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import openvino as ov
import psutil
from pydantic import BaseModel, ValidationError

from shards.llamacpp.binding import PACKAGE as LLAMACPP
from shards.manifest import Manifest
from shards.runtime import StageConfig

Finding = TypeVar("Finding", bound=BaseModel)


def file_of(kind: str, core: ov.Core, config: StageConfig, manifest: Manifest, cache: Path) -> Path:
    """Where a finding is kept. Its name holds what it depends on: machine, model and engine, not which layers."""
    facts = (
        _device_name(core, config.device),
        psutil.cpu_count(logical=False),
        psutil.cpu_count(),
        config.device,
        config.engine,
        config.mode,
        config.kv_precision,
        config.threads,
        len(config.cores or ()),
        manifest.stage.package_id if manifest.stage else manifest.package_id,
        ov.__version__ if config.engine != "llamacpp" else _llamacpp_version(),
    )
    return cache / f"{kind}-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]}.json"


def recall(file: Path, kind: type[Finding]) -> Finding | None:
    """An earlier finding; None if there is none, or it is damaged."""
    with suppress(OSError, ValidationError):
        return kind.model_validate_json(file.read_bytes())
    return None


def keep(file: Path, finding: BaseModel) -> None:
    """Keep a finding, whole or not at all; where it cannot be written it is found again the next time."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{psutil.Process().pid}.partial")
        partial.write_text(finding.model_dump_json(indent=1), "utf-8")
        partial.replace(file)


def _device_name(core: ov.Core, device: str) -> str:
    try:
        return str(core.get_property(device, "FULL_DEVICE_NAME"))
    except RuntimeError:  # OpenVINO has nothing for this processor; llama.cpp may have
        return platform.processor() or platform.machine()


def _llamacpp_version() -> str | None:
    try:
        return metadata.version(LLAMACPP)
    except metadata.PackageNotFoundError:  # who loads it says so
        return None
