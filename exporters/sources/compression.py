"""Weights stored in another way: graphs by optimum-intel, compression by NNCF. Both come with the `export` extra."""

from __future__ import annotations

import gc
import importlib.util
from pathlib import Path
from typing import Any, Literal

from exporters import agreement
from shards.errors import ExportError
from shards.progress import Progress

GROUP = 128
"""Weights of a row that share a scale. Where it does not divide the row, the largest of 64 and 32 that does."""
_SMALLEST_GROUP = 32

_EXTRA = ("optimum.intel", "nncf", "transformers", "accelerate", "gguf", "torch")
INSTALL = 'pip install "edge-agent[export]"'
GRAPH = "openvino_model.xml"
_TASK = "text-generation-with-past"


def is_installed() -> bool:
    """Whether the export extra is there."""
    return not _missing()


def require_extra(where: str, instead: str = "") -> None:
    """Refuse to go on without the export extra, and say how to get it.

    Raises:
        ExportError: a package of the extra is missing.
    """
    missing = _missing()
    if missing:
        raise ExportError(
            f"converting it needs packages that are not installed: {', '.join(missing)}",
            where=where,
            hint=f"Install them with: {INSTALL}{instead}",
        )


def _missing() -> list[str]:
    def is_there(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            return False

    return [name for name in _EXTRA if not is_there(name)]


def graph_of(model: Any, folder: Path, dtype: Literal["fp16", "fp32"] | None) -> Path:
    """Trace a transformers model into `folder` as a stateful graph, weights as they are or as `dtype`."""
    from optimum.exporters.openvino.convert import export_from_model
    from optimum.intel import OVConfig

    # a config without quantisation, because without any config large models become int8
    sixteen_bit = str(model.dtype) in ("torch.float16", "torch.bfloat16")
    export_from_model(
        model, folder, task=_TASK, stateful=True, ov_config=OVConfig(dtype=dtype), patch_16bit_model=sixteen_bit
    )
    gc.collect()
    return folder / GRAPH


def graph_of_folder(source: Path, folder: Path, dtype: Literal["fp16", "fp32"] | None) -> Path:
    """Turn the model of a Hugging Face folder into a stateful graph in `folder`, weights as they are or as `dtype`."""
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig

    main_export(
        str(source),
        folder,
        task=_TASK,
        stateful=True,
        trust_remote_code=False,
        local_files_only=True,
        library_name="transformers",
        ov_config=OVConfig(dtype=dtype),
        model_loading_kwargs={"use_safetensors": True},  # the other kind is a pickle
    )
    gc.collect()
    return folder / GRAPH


def compress(graph: Path, target: Path, weights: Literal["int4", "int8"]) -> None:
    """Write `graph` to `target` with compressed weights.

    int4 is symmetric with groups of 128 (or what divides the row), the embedding and the head matrix int8: they are
    few, and the most sensitive. Channels are scaled first by what the weights alone tell (AWQ without data), which the
    layer before absorbs: nearer to the original at no cost. int8 is symmetric with one scale for a row.
    """
    import nncf
    import openvino as ov

    model = ov.Core().read_model(graph)
    if weights == "int8":
        compressed = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
    else:
        compressed = nncf.compress_weights(
            model,
            mode=nncf.CompressWeightsMode.INT4_SYM,
            ratio=1.0,
            group_size=GROUP,
            backup_mode=nncf.BackupMode.INT8_SYM,
            awq=True,
            advanced_parameters=nncf.AdvancedCompressionParameters(
                group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST,
                min_adjusted_group_size=_SMALLEST_GROUP,
            ),
        )
    ov.save_model(compressed, target, compress_to_fp16=False)


def compress_and_compare(
    original: Path, target: Path, weights: Literal["int4", "int8"], tokenizer: Path, progress: Progress
) -> dict[str, float]:
    """Write `original` to `target` with compressed weights, and measure how far the two agree.

    Returns:
        The agreement, for people and JSON.
    """
    progress(f"compressing the weights to {weights}", 0, 1)
    target.parent.mkdir(parents=True, exist_ok=True)
    compress(original, target, weights)
    gc.collect()
    return agreement.compare(original, target, agreement.tokenise(tokenizer), progress).summary()
