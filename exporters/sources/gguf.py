"""Source: a GGUF file. For OpenVINO its weights are kept as openvino_genai reads them, or dequantised and compressed
again; llama.cpp takes them as they are."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any, Literal

from exporters import facts, llamacpp
from exporters.sources import Backend, LlamaCppSource, PreparedSource, Weights, child, compression, gguf_tokenizer
from exporters.sources.gguf_file import GgufFile, GgufTensor, read_gguf
from exporters.workspace import check_space
from shards.errors import CapacityError, ExportError, GraphError, StageError
from shards.progress import Progress

_ROPE_FACTORS = "rope_freqs.weight"
_COMPRESS = "Try --weights int4, which reads more kinds of files"
_KEEP = "Try --weights keep, or export the original Hugging Face model."
_NO_MODEL = "Is it a vocabulary, an adapter, or the part of a model that sees pictures?"
_AGAIN = "Download the file again."
_CONVERTED = "Look for another file of the model, or export the original Hugging Face model."
_ARCHITECTURE = re.compile(r"[\w.-]{1,64}", re.ASCII)


def prepare(
    path: Path,
    workdir: Path,
    weights: Weights | None,
    progress: Progress,
    backend: Backend | None = "openvino",
    *,
    checked: bool = True,
) -> PreparedSource:
    """Make the backends of a GGUF file and its tokenizer, in `workdir`; the file's own folder is left alone.

    Args:
        path: The file.
        workdir: An empty folder.
        weights: `keep`, or how to compress the dequantised weights; None is int4 where the export extra is installed.
            Only for OpenVINO.
        progress: Told of each phase.
        backend: What shall run the package. `both` is satisfied with llama.cpp where OpenVINO cannot be had; None with
            whichever of the two can.
        checked: Whether to compare llama.cpp stages with the whole model.

    Raises:
        ExportError: the file is damaged, or cannot be converted this way; says what to try.
        CapacityError: the disk is too full for the conversion.
        GraphError: the graph is not a decoder that can be cut into layers.
        StageError: llama.cpp was asked for and is not installed.
    """
    file = read_gguf(path)
    _check(file)
    gguf_tokenizer.check(file)
    description: dict[str, Any] = {"kind": "GGUF", "path": str(path.resolve()), "tensors": file.tensor_types}
    llama: LlamaCppSource | None = None
    if backend != "openvino":
        try:
            llama = llamacpp.prepare(file, workdir, progress, checked=checked)
        except (CapacityError, ExportError, StageError) as error:
            if backend is not None:
                raise
            description["llama.cpp backend"] = f"none: {error}"
    if backend == "llamacpp":
        return _without_graph(file, workdir, llama, description, progress)
    try:
        return _with_graph(file, workdir, weights, llama, description, progress)
    except (ExportError, GraphError) as error:
        if llama is None:
            raise
        description["OpenVINO backend"] = f"none: {error.what}"
        return _without_graph(file, workdir, llama, description, progress)


def _with_graph(
    file: GgufFile,
    workdir: Path,
    weights: Weights | None,
    llama: LlamaCppSource | None,
    description: dict[str, Any],
    progress: Progress,
) -> PreparedSource:
    _check_rotation(file)
    path, chosen = file.path, weights or ("int4" if compression.is_installed() else "keep")
    where = f"{path} (architecture {file.architecture}, tensors {file.tensor_types})"
    arguments = {"path": str(path.resolve()), "workdir": str(workdir)}
    log = workdir / "conversion.log"
    check_space(workdir, _space(file, chosen))
    if chosen == "keep":
        _check_kept(file)
        answer = child.run("keep", arguments, log, progress, where=where, hint=f"{_COMPRESS}{_how_to_install()}.")
    else:
        compression.require_extra(str(path), "; or keep the weights as they are: --weights keep")
        arguments["weights"] = chosen
        answer = child.run("dequantise", arguments, log, progress, where=where, hint=_KEEP)
        shutil.rmtree(workdir / "original", ignore_errors=True)
    graph, tokenizer = Path(answer["graph"]), Path(answer["tokenizer"])
    return PreparedSource(
        graph=graph,
        weights=graph.with_suffix(".bin"),
        tokenizer=tokenizer,
        detokenizer=tokenizer.with_name(gguf_tokenizer.DETOKENIZER),
        facts=facts.read(graph, name=path.stem, metadata=file.metadata),
        llamacpp=llama,
        description={**description, **answer.get("agreement", {})},
    )


def _without_graph(
    file: GgufFile, workdir: Path, llama: LlamaCppSource | None, description: dict[str, Any], progress: Progress
) -> PreparedSource:
    """The llama.cpp backend alone."""
    folder = workdir / "tokenizer-alone"
    folder.mkdir()
    arguments = {"path": str(file.path.resolve()), "workdir": str(folder)}
    where = f"{file.path} (architecture {file.architecture})"
    answer = child.run(
        "tokenizer", arguments, folder / "conversion.log", progress, where=where, hint="Its tokenizer cannot be read."
    )
    tokenizer = Path(answer["tokenizer"])
    return PreparedSource(
        graph=None,
        weights=None,
        tokenizer=tokenizer,
        detokenizer=tokenizer.with_name(gguf_tokenizer.DETOKENIZER),
        facts=facts.of_gguf(file, file.path.stem),
        llamacpp=llama,
        description=description,
    )


def convert_tokenizer(path: str, workdir: str, progress: Progress) -> dict[str, Any]:
    """Child job: the tokenizer of a GGUF."""
    progress("reading the tokenizer", 0, 1)
    return {"tokenizer": str(gguf_tokenizer.convert(read_gguf(Path(path)), Path(workdir) / "tokenizer"))}


def convert_kept(path: str, workdir: str, progress: Progress) -> dict[str, Any]:
    """Child job: let openvino_genai write the graph of a GGUF."""
    import openvino_genai

    progress("reading the tokenizer", 0, 1)
    tokenizer = gguf_tokenizer.convert(read_gguf(Path(path)), Path(workdir) / "tokenizer")
    progress("converting the weights", 0, 1)
    folder = Path(workdir) / "graph"
    folder.mkdir()
    # it writes beside the file it reads
    beside = _link(Path(path), folder / "model.gguf")
    openvino_genai.LLMPipeline(beside, "CPU", enable_save_ov_model=True)
    return {"graph": str(folder / compression.GRAPH), "tokenizer": str(tokenizer)}


def convert_dequantised(
    path: str, workdir: str, weights: Literal["int4", "int8", "fp16"], progress: Progress
) -> dict[str, Any]:
    """Child job: dequantise a GGUF through transformers, trace it, compress it."""
    file = read_gguf(Path(path))
    progress("reading the tokenizer", 0, 1)
    tokenizer = gguf_tokenizer.convert(file, Path(workdir) / "tokenizer")
    progress("dequantising the weights", 0, 1)
    model = _dequantise(file)
    progress("converting to OpenVINO", 0, 1)
    target = Path(workdir) / "graph" / compression.GRAPH
    answer: dict[str, Any] = {"graph": str(target), "tokenizer": str(tokenizer)}
    if weights == "fp16":
        compression.graph_of(model, target.parent, "fp16")
        return answer
    original = compression.graph_of(model, Path(workdir) / "original", "fp16")
    del model
    answer["agreement"] = compression.compress_and_compare(original, target, weights, tokenizer, progress)
    return answer


def _dequantise(file: GgufFile) -> Any:
    """The transformers model of a GGUF in f32, with all the file holds in it.

    transformers passes over what it does not know, and fills in what it does not find, with little more than a warning.
    """
    import torch
    import transformers

    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        file.path.parent, gguf_file=file.path.name, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    expected = sum(tensor.elements for tensor in file.tensors if tensor.name != _ROPE_FACTORS)
    found = sum(parameter.numel() for parameter in model.parameters())
    missing = sorted(loading["missing_keys"])
    if found != expected or missing:
        raise ExportError(
            f"transformers does not read all of it: the file holds {expected} weights, the model made of it {found}"
            + (f", and these are not in the file: {', '.join(missing[:4])}" if missing else ""),
            where=f"{file.path} (architecture {file.architecture})",
            hint=_KEEP,
        )
    factors = file.tensor(_ROPE_FACTORS)
    if factors is not None:
        _scale_rotation(model, file, factors)
    if not any(key.endswith(".attention.sliding_window") for key in file.metadata) and hasattr(
        model.config, "sliding_window"
    ):
        model.config.sliding_window = None  # some configs have one by default
    return model.eval()


def _scale_rotation(model: Any, file: GgufFile, tensor: GgufTensor) -> None:
    """Divide the rotary frequencies by the file's factors (the long-context scaling of Llama 3.1 and later)."""
    import torch

    with file.path.open("rb") as stream:
        stream.seek(tensor.start)
        factors = torch.frombuffer(bytearray(stream.read(tensor.size)), dtype=torch.float32)
    rotations = [module for module in model.modules() if hasattr(module, "inv_freq")]
    if not rotations or tensor.dtype != "F32" or any(module.inv_freq.shape != factors.shape for module in rotations):
        raise ExportError(
            f"its rotary factors ({_ROPE_FACTORS}) do not fit the model that transformers makes of it",
            where=str(file.path),
            hint="Export the original Hugging Face model instead.",
        )
    for module in rotations:
        module.inv_freq = module.inv_freq / factors


def _check(file: GgufFile) -> None:
    """Refuse what is no model."""
    architecture = file.metadata.get("general.architecture")
    if not file.tensors or architecture is None:
        raise ExportError("the file holds no language model", where=str(file.path), hint=_NO_MODEL)
    if not _ARCHITECTURE.fullmatch(file.architecture):
        raise ExportError("the file is damaged: its architecture has no name", where=str(file.path), hint=_AGAIN)
    if f"{architecture}.block_count" not in file.metadata:
        raise ExportError(
            f"the file holds no language model: the architecture {architecture} does not say how many layers it has",
            where=str(file.path),
            hint=_NO_MODEL,
        )
    file.layers  # noqa: B018 - raises
    context = file.metadata.get(f"{architecture}.context_length")
    if not isinstance(context, int) or context < 1:
        raise ExportError(
            "the file does not say how long a context the model can take", where=str(file.path), hint=_CONVERTED
        )


def _check_rotation(file: GgufFile) -> None:
    """Refuse what neither reader of ours for OpenVINO understands."""
    scaling = file.metadata.get(f"{file.architecture}.rope.scaling.type", "none")
    if scaling != "none":
        raise ExportError(
            f"it asks for a scaling of the rotary positions ({scaling}) that cannot be read from a GGUF",
            where=str(file.path),
            hint="Export the original Hugging Face model instead, or for llama.cpp: --backend llamacpp",
        )


def _check_kept(file: GgufFile) -> None:
    """Refuse what openvino_genai would read wrongly without a word."""
    if file.tensor(_ROPE_FACTORS) is not None:
        raise ExportError(
            f"openvino_genai does not read its rotary factors ({_ROPE_FACTORS}), so the answers would be wrong",
            where=str(file.path),
            hint=f"Use --weights int4{_how_to_install()}.",
        )


def _space(file: GgufFile, weights: Weights) -> int:
    """Bytes that a conversion writes at least: openvino_genai stores about what the file has, the others two bytes for
    each weight and the compressed weights beside them."""
    elements = sum(tensor.elements for tensor in file.tensors)
    compressed = {"fp16": 0, "int8": elements, "int4": elements // 2}
    return file.path.stat().st_size if weights == "keep" else 2 * elements + compressed[weights]


def _how_to_install() -> str:
    return "" if compression.is_installed() else f" (needs: {compression.INSTALL})"


def _link(source: Path, target: Path) -> Path:
    """Put a file under another name without using space, or else copy it."""
    for make in (os.link, os.symlink):
        try:
            make(source, target)
        except OSError:
            continue
        return target
    shutil.copyfile(source, target)
    return target
