from __future__ import annotations

import numpy as np
import openvino as ov
import pytest

from shards.device import cache_tensor, check_device, check_memory, pin_process, properties, reason
from shards.errors import CapacityError, StageError


def test_exact_mode_is_f32_without_dynamic_quantisation() -> None:
    assert properties("CPU", "exact") == {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }


def test_fast_mode_leaves_precision_to_the_plugin_but_for_the_kv_cache() -> None:
    usual = {"PERFORMANCE_HINT": "LATENCY", "KV_CACHE_PRECISION": "u8"}
    assert properties("GPU.1", "fast", threads=4) == usual
    assert properties("CPU", "fast", threads=4) == usual | {"INFERENCE_NUM_THREADS": 4}
    assert properties("NPU", "fast") == {"PERFORMANCE_HINT": "LATENCY"}


def test_a_kv_cache_of_f32_has_the_stage_compute_in_f32() -> None:
    told = properties("CPU", "fast", kv_precision="f32")
    assert (told["KV_CACHE_PRECISION"], told["INFERENCE_PRECISION_HINT"]) == ("f32", "f32")
    assert "INFERENCE_PRECISION_HINT" not in properties("CPU", "fast", kv_precision="f16")


def test_a_pinned_stage_has_a_thread_for_each_processor_and_stays_there() -> None:
    chosen = properties("CPU", "fast", cores=(2, 3, 5))
    assert chosen["INFERENCE_NUM_THREADS"] == 3
    assert chosen["ENABLE_CPU_PINNING"] is False
    assert properties("CPU", "fast", threads=1, cores=(2, 3, 5))["INFERENCE_NUM_THREADS"] == 1


def test_the_npu_has_no_exact_mode() -> None:
    with pytest.raises(StageError, match="no exact mode"):
        properties("NPU", "exact")


def test_an_unknown_device_is_answered_with_those_there_are() -> None:
    core = ov.Core()
    check_device(core, "CPU")
    check_device(core, "CPU.0")
    for device in ("TPU", "CPU.7", ""):
        with pytest.raises(StageError, match=r"OpenVINO sees no device .* here, only .*CPU"):
            check_device(core, device)


def test_processors_that_are_not_there_are_refused() -> None:
    with pytest.raises(StageError, match="cannot be pinned to processors 99999"):
        pin_process((99999,))


def test_a_cache_larger_than_memory_names_both_sizes() -> None:
    with pytest.raises(CapacityError, match=r"a KV cache of 12345 tokens takes 1073741824 MiB, \d+ MiB are free"):
        check_memory("CPU", 2**50, 12345)


@pytest.mark.parametrize(("kind", "bits"), [(ov.Type.f32, 32), (ov.Type.u8, 8), (ov.Type.bf16, 16)])
def test_a_cpu_cache_is_zeroed_and_aligned(kind: ov.Type, bits: int) -> None:
    tensor = cache_tensor(ov.Core(), "CPU", kind, (3, 2, 32, 40))
    assert (tensor.element_type, tuple(tensor.shape), tensor.byte_size) == (kind, (3, 2, 32, 40), 7680 * bits // 8)
    assert not np.any(tensor.data)
    assert tensor.data.ctypes.data % 64 == 0


def test_the_reason_of_an_error_is_its_last_line() -> None:
    assert reason(RuntimeError("Exception from core.cpp:84:\nNo such file.\n\n")) == "No such file"
    assert reason(MemoryError()) == "MemoryError"
