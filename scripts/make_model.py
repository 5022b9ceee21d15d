"""Write a GGUF of a chosen size with random weights: speed and memory at a realistic size, without a download of it.

The architecture is llama (GQA, 64-wide heads), the tokenizer SmolLM2's. The weights are scaled so that activations keep
their size through the layers and the logits spread like a trained model's; what it writes makes no sense.

    python scripts/make_model.py -o random-1b.gguf
    python scripts/make_model.py --parameters 3B --quantisation Q4_0 -o random-3b.gguf
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent import download
from agent.cli import output
from exporters.sources.gguf_file import read_gguf
from shards.errors import ConfigurationError, EdgeAgentError, ExportError
from shards.progress import Progress, silent

HEAD_SIZE = 64
HEADS_PER_KV_HEAD = 4
CONTEXT_LENGTH = 8192
_BLOCK = 32
_LOGIT_SPREAD = 2.5
"""Standard deviation of the logits: a trained model's is about that."""
_WIDTHS = (64, 128, 256, 512, 768, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192)
_HIDDEN_PER_LAYER = 100
"""Trained models of all sizes are about this many times wider than deep."""
_FILE_TYPES = {"Q4_0": 2, "Q4_1": 3}


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a llama model whose head matrix is its embedding."""

    layers: int
    hidden: int
    vocabulary: int

    @property
    def heads(self) -> int:
        """Attention heads."""
        return self.hidden // HEAD_SIZE

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values; they divide the attention heads."""
        wanted = max(1, self.heads // HEADS_PER_KV_HEAD)
        return next(heads for heads in range(wanted, 0, -1) if self.heads % heads == 0)

    @property
    def ffn(self) -> int:
        """Width inside the MLP."""
        return max(256, round(2.75 * self.hidden / 256) * 256)

    def matrices(self) -> dict[str, tuple[int, int]]:
        """The matrices of a layer as (out, in)."""
        kv = self.kv_heads * HEAD_SIZE
        return {
            "attn_q": (self.hidden, self.hidden),
            "attn_k": (kv, self.hidden),
            "attn_v": (kv, self.hidden),
            "attn_output": (self.hidden, self.hidden),
            "ffn_gate": (self.ffn, self.hidden),
            "ffn_up": (self.ffn, self.hidden),
            "ffn_down": (self.hidden, self.ffn),
        }

    @property
    def parameters(self) -> int:
        """Number of weights."""
        layer = sum(math.prod(shape) for shape in self.matrices().values()) + 2 * self.hidden
        return self.layers * layer + (self.vocabulary + 1) * self.hidden


def shape_for(parameters: int, vocabulary: int, layers: int | None = None, hidden: int | None = None) -> Shape:
    """The shape that comes closest to a number of parameters with usual proportions; what is given stays.

    Raises:
        ConfigurationError: the width does not divide into heads.
    """
    if hidden is not None and (hidden <= 0 or hidden % HEAD_SIZE):
        raise ConfigurationError(f"{hidden} is not a multiple of the head size, {HEAD_SIZE}", where="--hidden")
    if layers is not None and layers <= 0:
        raise ConfigurationError(f"{layers} layers are too few", where="--layers", hint="Give 1 or more.")
    candidates = []
    for width in _WIDTHS if hidden is None else (hidden,):
        one = Shape(1, width, vocabulary).parameters
        each = Shape(2, width, vocabulary).parameters - one
        depth = layers or max(1, 1 + round((parameters - one) / each))
        candidates.append(Shape(depth, width, vocabulary))
    if layers is not None:
        return min(candidates, key=lambda shape: abs(shape.parameters - parameters))
    return min(
        candidates,
        key=lambda s: (
            abs(math.log(s.layers * _HIDDEN_PER_LAYER / s.hidden)) + 4 * abs(math.log(s.parameters / parameters))
        ),
    )


def write_model(
    target: Path, shape: Shape, tokenizer: Path, quantisation: str, seed: int, progress: Progress = silent
) -> None:
    """Write the model, one tensor in memory at a time. The same arguments make the same file.

    Raises:
        ExportError: `tokenizer` is not a GGUF, or the file cannot be written.
    """
    import gguf

    partial = target.with_name(f"{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        writer = gguf.GGUFWriter(partial, "llama")
        try:
            _add_metadata(writer, shape, quantisation)
            _copy_tokenizer(writer, tokenizer)
            plan = list(_tensors(shape, quantisation))
            for name, rows_columns, kind, _ in plan:
                dtype = gguf.GGMLQuantizationType[kind]
                stored = gguf.quant_shape_to_byte_shape(rows_columns, dtype)
                size = math.prod(stored)
                writer.add_tensor_info(name, stored, np.dtype(np.uint8), size, raw_dtype=dtype)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            rng = np.random.default_rng(seed)
            done, total = 0, shape.parameters
            for _, rows_columns, kind, spread in plan:
                writer.write_tensor_data(_random(rng, rows_columns, kind, spread))
                done += math.prod(rows_columns)
                progress(f"writing {target.name}", done, total)
        finally:
            writer.close()
        partial.replace(target)
    except OSError as error:
        raise ExportError(f"the model cannot be written ({error.strerror})", where=str(target)) from error
    finally:
        partial.unlink(missing_ok=True)


def _add_metadata(writer: Any, shape: Shape, quantisation: str) -> None:
    writer.add_name(f"random-{_count(shape.parameters)}")
    writer.add_file_type(_FILE_TYPES[quantisation])
    writer.add_quantization_version(2)
    writer.add_block_count(shape.layers)
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100_000.0)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_vocab_size(shape.vocabulary)


def _copy_tokenizer(writer: Any, source: Path) -> None:
    """Copy everything that a GGUF says of its tokenizer."""
    import gguf

    for key, field in gguf.GGUFReader(source).fields.items():
        if key.startswith("tokenizer."):
            kind, *items = field.types
            writer.add_key_value(key, field.contents(), kind, items[0] if items else None)


def _tensors(shape: Shape, quantisation: str) -> Iterator[tuple[str, tuple[int, ...], str, float]]:
    """(name, shape, type, standard deviation) of each tensor, in the order of the file; 0 stands for ones."""
    yield "token_embd.weight", (shape.vocabulary, shape.hidden), "Q8_0", _LOGIT_SPREAD / math.sqrt(shape.hidden)
    yield "output_norm.weight", (shape.hidden,), "F32", 0.0
    for layer in range(shape.layers):
        for norm in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{norm}.weight", (shape.hidden,), "F32", 0.0
        for name, (rows, columns) in shape.matrices().items():
            # what is added to the residual stream is small enough that all layers together keep its size
            depth = math.sqrt(2 * shape.layers) if name in ("attn_output", "ffn_down") else 1.0
            gain = {"attn_output": 4.0, "ffn_down": 2.0}.get(name, 1.0)
            yield f"blk.{layer}.{name}.weight", (rows, columns), quantisation, gain / depth / math.sqrt(columns)


def _random(rng: np.random.Generator, shape: tuple[int, ...], kind: str, spread: float) -> NDArray[Any]:
    """A tensor as the file stores it: [rows, bytes], or f32. Weights are uniform, scales differ from block to block."""
    if kind == "F32":
        return np.ones(shape, np.float32)
    rows, columns = shape
    blocks = rows * columns // _BLOCK
    half = spread * math.sqrt(3) * rng.uniform(0.8, 1.2, blocks).astype(np.float32)  # weights lie in [-half, half]
    if kind == "Q8_0":
        parts = [_f16(half / 127), rng.integers(-127, 128, (blocks, _BLOCK), np.int8).view(np.uint8)]
    else:
        # without 0, so that the mean is 0 and the zero point, 8, a whole number: readers round it to one
        low, high = rng.integers(1, 16, (2, blocks, _BLOCK // 2), np.uint8)
        scale = _f16(half / 7)
        offset = [_f16(-8 * scale.view("<f2")[:, 0].astype(np.float32))] if kind == "Q4_1" else []
        parts = [scale, *offset, low | high << 4]
    return np.concatenate(parts, axis=1).reshape(rows, -1)


def _f16(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """One f16 for each block, as bytes [blocks, 2]."""
    return values.astype("<f2")[:, None].view(np.uint8)


def _count(parameters: int) -> str:
    """1004000000 -> '1.0B'."""
    return f"{parameters / 1e9:.1f}B" if parameters >= 10**9 else f"{parameters / 1e6:.0f}M"


def _parse_count(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([MB])", text.upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size like 1B, 1.5B or 500M")
    return round(float(match[1]) * {"M": 10**6, "B": 10**9}[match[2]])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Write a GGUF of a chosen size with random weights.")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.gguf")
    parser.add_argument("--parameters", type=_parse_count, default="1B", help="size to aim at (default: 1B)")
    parser.add_argument("--layers", type=int, help="decoder layers, instead of what suits the size")
    parser.add_argument("--hidden", type=int, help=f"hidden size, a multiple of {HEAD_SIZE}")
    parser.add_argument("--quantisation", choices=sorted(_FILE_TYPES), default="Q4_1", help="(default: Q4_1)")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FILE.gguf", help="whose tokenizer to take (default: SmolLM2's)"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        with output.progress_bars() as progress:
            tokenizer = arguments.tokenizer or download.smollm2_gguf(progress)
            vocabulary = len(read_gguf(tokenizer).metadata.get("tokenizer.ggml.tokens") or ())
            if not vocabulary:
                raise ExportError("there is no tokenizer in this file", where=str(tokenizer))
            shape = shape_for(arguments.parameters, vocabulary, arguments.layers, arguments.hidden)
            write_model(arguments.output, shape, tokenizer, arguments.quantisation, arguments.seed, progress)
    except EdgeAgentError as error:
        output.show_error(error)
        return 1
    size = arguments.output.stat().st_size
    print(f"{arguments.output}: {_count(shape.parameters)} parameters, {shape.layers} layers, hidden {shape.hidden}, "
          f"{shape.heads} heads, {shape.kv_heads} KV heads, {size / 1e6:,.0f} MB")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
