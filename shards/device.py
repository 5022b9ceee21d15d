"""What OpenVINO devices are told, by numeric mode. Imports OpenVINO.

Exact mode computes and caches in f32 without dynamic quantisation of activations, which is what makes a split model
agree with the whole one in every token; fast mode leaves these to the plugin, and caches in u8 unless told otherwise.
CPU behaviour is tested; for GPU and NPU this follows OpenVINO's documentation of their plugins.

A KV cache of f16 is one of bf16 where the CPU computes in that: attention reads keys and values in the precision it
computes in. So a cache of f32 also has the stage compute in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import psutil

from shards.errors import CapacityError, StageError
from shards.kv_cache import kv_precision as chosen_kv_precision
from shards.manifest import ModelFacts
from shards.runtime import KvPrecision, Mode, RuntimeFacts, StageConfig

Properties = dict[str, Any]

_PRECISION, _KV_PRECISION = "INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION"
_EXACT = {_PRECISION: "f32", _KV_PRECISION: "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
_REPORTED = (
    _PRECISION,
    _KV_PRECISION,
    "DYNAMIC_QUANTIZATION_GROUP_SIZE",
    "INFERENCE_NUM_THREADS",
    "ENABLE_CPU_PINNING",
)
_SAME_WIDTH: dict[KvPrecision, tuple[str, ...]] = {"u8": ("u8", "i8"), "f16": ("f16", "bf16"), "f32": ("f32",)}
"""What plugins make of a KV cache's precision."""

_ALIGNMENT = 64  # bytes: a cache line, and what OpenVINO's own allocator gives


def family(device: str) -> str:
    """The plugin of a device: `GPU` for `GPU.1`."""
    return device.split(".")[0]


def check_device(core: ov.Core, device: str) -> None:
    """Raise a StageError that lists what OpenVINO sees, unless `device` is among it."""
    seen = core.available_devices
    if device not in seen and not (device.endswith(".0") and family(device) in seen):
        raise StageError(
            f"OpenVINO sees no device {device!r} here, only {', '.join(seen) or 'none'}",
            where="device",
            hint="Choose one of these, or install the device's driver.",
        )


def properties(
    device: str,
    mode: Mode,
    threads: int | None = None,
    cores: Sequence[int] | None = None,
    kv_precision: KvPrecision | None = None,
) -> Properties:
    """What a stage is compiled with on a device.

    Raises:
        StageError: the device cannot compute exactly.
        ConfigurationError: exact mode is to have a KV cache of less than f32.
    """
    plugin = family(device)
    chosen: Properties = {"PERFORMANCE_HINT": "LATENCY"}
    precision = chosen_kv_precision(mode, kv_precision)
    if mode == "exact":
        if plugin == "NPU":
            raise StageError(
                "the NPU computes in f16 and has no exact mode", where=device, hint="Use mode fast, or another device."
            )
        chosen |= _EXACT
    elif plugin != "NPU" or kv_precision is not None:
        # said, not left to the plugin: a graph may carry another wish of whoever exported it
        chosen[_KV_PRECISION] = precision
        if precision == "f32":
            chosen[_PRECISION] = "f32"
    if plugin == "CPU":
        if threads is None and cores:
            threads = len(cores)
        if threads is not None:
            chosen["INFERENCE_NUM_THREADS"] = threads
        if cores:
            # the plugin would pin its threads to the machine's first cores, out of the process's own set
            chosen["ENABLE_CPU_PINNING"] = False
    return chosen


def pin_process(cores: Sequence[int]) -> None:
    """Keep this process on some processors.

    Raises:
        StageError: the machine does not have them, or its operating system cannot pin a process.
    """
    try:
        psutil.Process().cpu_affinity(list(cores))
    except (AttributeError, ValueError, OSError) as error:
        raise StageError(
            f"the process cannot be pinned to processors {', '.join(map(str, cores))} ({error})",
            where="cores",
            hint=f"This machine has processors 0 to {(psutil.cpu_count() or 1) - 1}.",
        ) from None


def compile_stage(core: ov.Core, stage: ov.Model, device: str, chosen: Properties) -> ov.CompiledModel:
    """Compile a stage; `chosen` properties that the device does not know are left out.

    Raises:
        StageError: the plugin refuses the graph, or failed.
    """
    known = core.get_property(device, "SUPPORTED_PROPERTIES")
    try:
        return core.compile_model(stage, device, {name: value for name, value in chosen.items() if name in known})
    except RuntimeError as error:
        hint = "Use another device, engine or KV cache precision for this stage."
        if family(device) == "NPU":
            hint = "The NPU takes graphs of fixed shapes only. Use the CPU or GPU for this stage."
        raise StageError(
            f"{device} cannot compile the stage: {reason(error)}", where=stage.get_friendly_name(), hint=hint
        ) from error


def in_force(compiled: ov.CompiledModel) -> dict[str, str]:
    """The device properties a compiled stage really runs with."""
    known = compiled.get_property("SUPPORTED_PROPERTIES")
    found: dict[str, str] = {}
    for name in _REPORTED:
        if name in known:
            value = compiled.get_property(name)
            found[name] = value.get_type_name() if isinstance(value, ov.Type) else str(value)
    if found.get(_PRECISION) == "bf16" and found.get(_KV_PRECISION) == "f16":
        found[_KV_PRECISION] = "bf16"  # the plugin tells what it was asked for
    return found


def facts_of(
    config: StageConfig,
    model: ModelFacts,
    compiled: ov.CompiledModel,
    block: int,
    blocks: int,
    kv_type: ov.Type | None = None,
) -> RuntimeFacts:
    """What a compiled stage says of itself; `kv_type` is what it keeps keys and values in, where that can be seen.

    Raises:
        StageError: it keeps them in something of another width than the config asks for.
    """
    found = in_force(compiled)
    if kv_type is not None:
        found[_KV_PRECISION] = kv_type.get_type_name()
    wanted = config.kv_precision
    if wanted is not None and found.get(_KV_PRECISION) not in _SAME_WIDTH[wanted]:
        kept = found.get(_KV_PRECISION, "a precision of its own")
        raise StageError(
            f"{config.device} keeps its KV cache in {kept}, not in {wanted}",
            where="kv_precision",
            hint="Ask for that, or use another device or engine.",
        )
    return RuntimeFacts.of(config, model, block=block, blocks=blocks, properties=found)


def check_memory(device: str, needed: int, kv_tokens: int) -> None:
    """Raise a CapacityError if a KV cache of `needed` bytes does not fit the memory that is free now."""
    if family(device) != "CPU":
        return  # the driver answers for its own memory when the cache is made
    free = psutil.virtual_memory().available
    if needed > free:
        raise CapacityError(
            f"a KV cache of {kv_tokens} tokens takes {needed / 2**20:.0f} MiB, {free / 2**20:.0f} MiB are free",
            where=device,
            hint="Ask for a smaller kv_tokens, or give the stage fewer layers.",
        )


def cache_tensor(core: ov.Core, device: str, element_type: ov.Type, shape: tuple[int, ...]) -> ov.Tensor:
    """A KV cache tensor where the device can write to it.

    On the CPU it is zeroed by the operating system, page by page as they are first used: a large cache costs memory
    only as it fills.

    Raises:
        CapacityError: the device has not enough memory.
    """
    size = element_type.bitwidth * int(np.prod(shape, dtype=np.int64)) // 8
    try:
        if family(device) != "CPU":
            return core.get_default_context(device).create_tensor(element_type, ov.Shape(shape), {})
        memory = np.zeros(size + _ALIGNMENT, np.uint8)
    except (RuntimeError, MemoryError) as error:
        raise CapacityError(
            f"no memory for a KV cache tensor of {size / 2**20:.0f} MiB ({reason(error)})",
            where=device,
            hint="Ask for a smaller kv_tokens, or give the stage fewer layers.",
        ) from error
    start = -memory.ctypes.data % _ALIGNMENT
    return ov.Tensor(memory[start : start + size], ov.Shape(shape), element_type)


def reason(error: BaseException) -> str:
    """The line of an OpenVINO error that says why; the lines before it are places in OpenVINO's sources."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__
