"""Where a model comes from: each source becomes an OpenVINO graph, its tokenizer and the facts of the model."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shards.errors import ExportError
from shards.manifest import ModelFacts, WeightSpans
from shards.progress import Progress

Weights = Literal["keep", "int4", "int8", "fp16"]
"""How the package stores the weights; `keep` takes them as the source has them."""

Backend = Literal["openvino", "llamacpp", "both"]
"""What a package can be run by."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class LlamaCppSource:
    """The llama.cpp backend, ready to be put into a package."""

    metadata: Path
    tensors: Path
    spans: WeightSpans
    checked_rows: int
    """Tokens whose logits were the same in two stages and in the whole model, to the bit; 0: not checked."""


@dataclass(frozen=True, slots=True)
class PreparedSource:
    """A source, ready to be indexed into a package. Each graph has its `.bin` beside the `.xml`.

    The package takes the files that lie in the work folder; others are copied.
    """

    graph: Path | None
    """The stateful language model; `weights` belongs to it. None: the package has the llama.cpp backend alone."""
    weights: Path | None
    tokenizer: Path | None
    """None: the package takes and gives token ids only."""
    detokenizer: Path | None
    facts: ModelFacts
    draft_vocabulary: Path | None = None
    """The token of each column of the logits, where the head is trimmed."""
    llamacpp: LlamaCppSource | None = None
    description: dict[str, Any] = field(default_factory=dict)
    """For people: kind, name or path, quantisation, agreement with the original."""


def prepare(
    source: str,
    workdir: Path,
    weights: Weights | None,
    progress: Progress,
    backend: Backend | None = None,
    *,
    checked: bool = True,
) -> PreparedSource:
    """Make `source` ready: an IR folder, a GGUF file, a Hugging Face folder, or a model name on the hub.

    Args:
        source: A path, or `owner/name`.
        workdir: An empty folder for what has to be made; on the file system of the package.
        weights: How to store the weights; None means what suits the source.
        progress: Told of everything that takes longer than a second.
        backend: What shall run the package; None: all that can. Only a GGUF can be run by llama.cpp.
        checked: Whether to compare llama.cpp stages with the whole model.

    Raises:
        ExportError: nothing of the kind is there, or it cannot be converted.
    """
    path = Path(source).expanduser()
    if path.suffix.lower() == ".gguf" and (path.is_file() or not path.exists()):
        from exporters.sources import gguf

        if not path.is_file():
            raise ExportError("there is no such file", where=source, hint="Give the path of a GGUF file.")
        return gguf.prepare(path, workdir, weights, progress, backend, checked=checked)
    if backend not in (None, "openvino"):
        raise ExportError(
            "llama.cpp runs GGUF files only", where=source, hint="Give a .gguf file, or leave --backend out."
        )
    if path.is_dir():
        if (path / "openvino_model.xml").is_file():
            from exporters.sources import openvino_ir

            return openvino_ir.prepare(path, workdir, weights, progress)
        if (path / "config.json").is_file():
            from exporters.sources import huggingface

            return huggingface.prepare(str(path), workdir, weights, progress)
        raise ExportError(
            "this folder holds no model: neither openvino_model.xml (OpenVINO) nor config.json (Hugging Face) is in it",
            where=source,
            hint=_other_models(path),
        )
    if path.exists():
        raise ExportError("this file is not a GGUF file", where=source, hint="Its name must end in .gguf.")
    if _HUB_NAME.fullmatch(source):
        from exporters.sources import huggingface

        return huggingface.prepare(source, workdir, weights, progress)
    raise ExportError(
        "there is no such folder or file, and it is not a model name on the Hugging Face hub (owner/name) either",
        where=source,
        hint="Give an OpenVINO folder, a .gguf file, a Hugging Face folder or a hub name.",
    )


def _other_models(folder: Path) -> str:
    """What to try instead: GGUF files in the folder, or the kinds of source there are."""
    files = sorted(p.name for p in folder.glob("*.gguf"))
    if files:
        return f"It holds GGUF files; give one of them: {', '.join(files[:4])}"
    return "Give an OpenVINO folder, a .gguf file, a Hugging Face folder or a hub name."
