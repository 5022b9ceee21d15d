"""Text to token ids and back, through the package's own tokenizer graphs.

The graphs are rewired when they are read: raw bytes go in and out instead of strings (string tensors end at a NUL and
repair broken UTF-8 by their own rules), what is added around a text is switched by an input, and nothing is cut off.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shards.errors import PackageError
from shards.manifest import DETOKENIZER, TOKENIZER

_UNLIMITED = 2**31 - 65
"""Length limit in place of a tokenizer's own; larger values overflow in the Truncate operation."""
_CLEAN_UP = rb"(?| ([\\.\\?\\!,])| ('[ms])| (') | ('[rv]e)| (n't))"
"""Pattern of the step that takes spaces before punctuation away. It damages code, and depends on tokens to come."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """A package's tokenizer and detokenizer, on one CPU thread each. Safe to use from several threads.

    Args:
        tokenizer: Path of the tokenizer graph.
        detokenizer: Path of the detokenizer graph.

    Raises:
        PackageError: a graph is missing or is not what openvino-tokenizers writes.
    """

    def __init__(self, tokenizer: Path, detokenizer: Path) -> None:
        import openvino as ov
        import openvino_tokenizers  # noqa: F401  (registers its operations with every Core made from here on)

        core = ov.Core()
        self._encoder = _compile(core, tokenizer, _rewire_encoder)
        self._decoder = _compile(core, detokenizer, _rewire_decoder)
        self._encoding, self._decoding = threading.Lock(), threading.Lock()

    @classmethod
    def load(cls, package: Path) -> Tokenizer:
        """Load from a model package.

        Raises:
            PackageError: the package has no tokenizer, or a damaged one.
        """
        return cls(package / TOKENIZER, package / DETOKENIZER)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a text of any length.

        Args:
            text: Special tokens written in it become those tokens. Lone surrogates become U+FFFD.
            special: Add what the tokenizer puts around a text, such as BOS. False for the output of a chat template,
                which has it already.
        """
        data = np.frombuffer(_SURROGATE.sub("\ufffd", text).encode(), np.uint8)
        with self._encoding:
            begins, ends, ids = self._encoder.infer(
                {
                    "begins": np.zeros(1, np.int32),
                    "ends": np.array([len(data)], np.int32),
                    "chars": data,
                    "special": np.array(special),
                }
            ).values()
            found: list[int] = ids[begins[0] : ends[0]].tolist()
            return found

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of token ids; bytes that are not UTF-8 become U+FFFD.

        Spaces before punctuation stay, also where the tokenizer's configuration would clean them up.
        """
        return self.decode_bytes([list(ids)], skip_special=skip_special)[0].decode("utf-8", "replace")

    def decode_bytes(
        self, ids: Sequence[Sequence[int]] | NDArray[np.integer], *, skip_special: bool = True
    ) -> list[bytes]:
        """The raw bytes of several sequences of token ids, [sequences, length]. Ids without a token have none."""
        batch = np.asarray(ids, np.int64)
        if not batch.size:
            return [b""] * len(batch)
        with self._decoding:
            begins, ends, chars = self._decoder.infer(
                {"ids": batch, "skip": np.array([_UNLIMITED if skip_special else 0], np.int32)}
            ).values()
            data = chars.tobytes()
            return [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def _compile(core: Any, path: Path, rewire: Callable[[Any], None]) -> Any:
    """Read, rewire and compile one of the two graphs; answers an infer request."""
    if not path.is_file():
        raise PackageError("the tokenizer is missing", where=str(path), hint="Export the model again.")
    try:
        model = core.read_model(path)
        rewire(model)
        return core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1}).create_infer_request()
    except (RuntimeError, LookupError) as error:
        raise PackageError(
            f"the tokenizer graph cannot be used ({str(error).strip().splitlines()[-1]})",
            where=str(path),
            hint="Export the model again with this version of edge-agent.",
        ) from None


def _rewire_encoder(model: Any) -> None:
    """Inputs begins, ends [1], chars [bytes], special []; results the ragged ids: begins, ends [1], ids [tokens]."""
    from openvino import opset15 as ops

    begins, ends = ops.parameter([-1], np.int32), ops.parameter([-1], np.int32)
    chars, special = ops.parameter([-1], np.uint8), ops.parameter([], bool)
    _replace_outputs(_one(model, "StringTensorUnpack"), [p.output(0) for p in (begins, ends, chars)])
    nothing = ops.constant(0, np.int32)
    for combine in _all(model, "CombineSegments"):
        for segment in range(0, combine.get_input_size() - 1, 3):
            # segments are (begins, ends, ids); those of special tokens are constants
            if combine.input_value(segment).get_node().get_type_name() == "Constant":
                end = combine.input(segment + 1)
                end.replace_source_output(ops.select(special, end.get_source_output(), nothing).output(0))
    for truncate in _all(model, "Truncate"):
        truncate.input(truncate.get_input_size() - 3).replace_source_output(_scalar(_UNLIMITED))
    for minimum in _all(model, "Minimum"):  # how graphs without Truncate limit the length
        for limit in minimum.inputs():
            if limit.get_source_output().get_node().get_type_name() == "Constant":
                limit.replace_source_output(_scalar(_UNLIMITED))
    dense = _one(model, "RaggedToDense")
    inputs = {"begins": begins, "ends": ends, "chars": chars, "special": special}
    _set_ports(model, inputs, [dense.input_value(i) for i in range(3)])


def _rewire_decoder(model: Any) -> None:
    """Inputs ids [sequences, length] and skip [1] (how many special tokens are left out, from the first).

    Results are begins, ends [sequences], chars [bytes].
    """
    from openvino import opset15 as ops

    skip = ops.parameter([1], np.int32)
    for decoder in _all(model, "VocabDecoder"):
        if decoder.get_input_size() > 4:
            specials = decoder.input_value(4)
            if specials.get_node().get_type_name() == "Slice":
                specials = specials.get_node().input_value(0)
            zero, one = ops.constant([0], np.int32), ops.constant([1], np.int32)
            decoder.input(4).replace_source_output(ops.slice(specials, zero, skip, one).output(0))
    for validate in _all(model, "UTF8Validate"):
        _replace_outputs(validate, [validate.input_value(i) for i in range(3)])
    for regex in _all(model, "RegexNormalization"):
        pattern = regex.input_value(3).get_node()
        if pattern.get_type_name() == "Constant" and pattern.data.tobytes() == _CLEAN_UP:
            _replace_outputs(regex, [regex.input_value(i) for i in range(3)])
    (ids,) = model.get_parameters()
    pack = _one(model, "StringTensorPack")
    _set_ports(model, {"ids": ids, "skip": skip}, [pack.input_value(i) for i in range(3)])


def _set_ports(model: Any, inputs: dict[str, Any], results: list[Any]) -> None:
    """Give the model these inputs and results instead of its own.

    In place, because the library of the tokenizer's operations stays loaded as long as this very model.
    """
    from openvino import opset15 as ops

    old_parameters, old_results = model.get_parameters(), model.get_results()
    for sink in model.get_sinks():
        model.remove_sink(sink)
    model.add_results([ops.result(output) for output in results])
    for result in old_results:
        model.remove_result(result)
    for parameter in old_parameters:
        model.remove_parameter(parameter)
    for name, parameter in inputs.items():
        parameter.output(0).set_names({name})
    model.add_parameters(list(inputs.values()))
    model.validate_nodes_and_infer_types()


def _all(model: Any, kind: str) -> list[Any]:
    return [node for node in model.get_ordered_ops() if node.get_type_name() == kind]


def _one(model: Any, kind: str) -> Any:
    found = _all(model, kind)
    if len(found) != 1:
        raise LookupError(f"it has {len(found)} operations of type {kind} instead of one")
    return found[0]


def _scalar(value: int) -> Any:
    from openvino import opset15 as ops

    return ops.constant(value, np.int32).output(0)


def _replace_outputs(node: Any, sources: list[Any]) -> None:
    for output, source in zip(node.outputs(), sources, strict=False):
        for target in output.get_target_inputs():
            target.replace_source_output(source)
