"""The tokenizer in a GGUF, as OpenVINO graphs. openvino_genai reads it; what it would read wrongly is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from exporters.sources.gguf_file import GgufFile
from shards.errors import ExportError

TOKENIZER, DETOKENIZER = "openvino_tokenizer.xml", "openvino_detokenizer.xml"
_GGUF = "tokenizer.gguf"


@dataclass(frozen=True, slots=True)
class _Split:
    """How text is cut before byte pairs are merged: as openvino_genai does it for `like`, digits aside."""

    like: str
    digits: str | None = None
    """What stands for the digits instead of openvino_genai's one digit at a time."""


_SPLITS = {
    "smollm": _Split("smollm"),
    "qwen2": _Split("qwen2"),
    "deepseek-r1-qwen": _Split("qwen2"),
    "llama-bpe": _Split("qwen2", digits=r"\p{N}{1,3}"),
    "default": _Split("default"),
}
"""The values of `tokenizer.ggml.pre` whose splitting is known. openvino_genai takes its default for all others, which
gives wrong tokens without a word."""

_ONE_DIGIT = r"|\p{N}|"
_REQUIRED = {
    "tokenizer.ggml.pre": str,
    "tokenizer.ggml.tokens": list,
    "tokenizer.ggml.merges": list,
    "tokenizer.ggml.token_type": list,
}
_FROM_ORIGINAL = "Export the original Hugging Face model instead."


def check(file: GgufFile) -> None:
    """Refuse a file whose tokenizer cannot be read, before anything large happens.

    Raises:
        ExportError: the tokenizer is missing, or of a kind that is not known.
    """
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind is None:
        raise ExportError("the file holds no tokenizer", where=str(file.path), hint=_FROM_ORIGINAL)
    if kind != "gpt2":
        raise ExportError(
            f"its tokenizer is of the kind {str(kind)[:64]!r}; only byte-level BPE ('gpt2') can be read from a GGUF",
            where=str(file.path),
            hint=_FROM_ORIGINAL,
        )
    for key, wanted in _REQUIRED.items():
        if not isinstance(file.metadata.get(key), wanted):
            raise ExportError(f"its tokenizer lacks {key}", where=str(file.path), hint=_FROM_ORIGINAL)
    pre = file.metadata["tokenizer.ggml.pre"]
    if pre not in _SPLITS:
        raise ExportError(
            f"its tokenizer splits text in a way that is not known here ({pre[:64]!r}; known: {', '.join(_SPLITS)})",
            where=str(file.path),
            hint=_FROM_ORIGINAL,
        )


def convert(file: GgufFile, folder: Path) -> Path:
    """Write the tokenizer and the detokenizer graph to `folder`; returns the tokenizer. Needs no tensor of the file."""
    import openvino_genai

    split = _SPLITS[file.metadata["tokenizer.ggml.pre"]]
    made = folder / "made"
    made.mkdir(parents=True)
    file.write_tokenizer(made / _GGUF, split.like)
    openvino_genai.Tokenizer(made / _GGUF, enable_save_ov_model=True)
    if split.digits is not None:
        _replace_digits(made / TOKENIZER, folder / TOKENIZER, split.digits)
        (made / TOKENIZER).unlink()
        (made / TOKENIZER).with_suffix(".bin").unlink()
    (made / _GGUF).unlink()
    for path in made.iterdir():
        path.replace(folder / path.name)
    made.rmdir()
    return folder / TOKENIZER


def _replace_digits(source: Path, target: Path, digits: str) -> None:
    """Write a tokenizer graph whose splitting takes `digits` where openvino_genai takes one digit."""
    import numpy as np
    import openvino as ov
    import openvino_tokenizers  # noqa: F401  (registers the operations)
    from openvino import opset13 as op

    model = ov.Core().read_model(source)
    (split,) = (node for node in model.get_ordered_ops() if node.get_type_name() == "RegexSplit")
    port = split.input(split.get_input_size() - 1)
    pattern = bytes(port.get_source_output().get_node().get_data()).decode()
    before, _, after = pattern.partition(_ONE_DIGIT)
    new = np.frombuffer(f"{before}|{digits}|{after}".encode(), np.uint8)
    port.replace_source_output(op.constant(new).output(0))
    ov.save_model(model, target, compress_to_fp16=False)
