"""What a model is: its sizes from the graph itself, the rest from the files that came with it.

Nothing here knows an architecture. A fact comes from, in this order: the JSON files of a Hugging Face folder, the
metadata of a GGUF, the runtime information of the tokenizer graph.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from pydantic import ValidationError

from exporters.sources.gguf_file import GgufFile, read_gguf
from shards.errors import ExportError
from shards.manifest import ModelFacts

if TYPE_CHECKING:
    import openvino as ov

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
_UNLIMITED = 10**9
"""Tokenizers without a limit carry a huge one."""

_TURN_ENDS = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>", "<|return|>"}
)
"""Texts that end a turn of a chat. One counts only where it is a control token and the chat template writes it."""

_CONTROL = 3
"""GGUF's token type of control tokens."""


def read(
    graph: Path,
    *,
    name: str,
    folder: Path | None = None,
    metadata: Mapping[str, Any] | None = None,
    tokenizer: Path | None = None,
) -> ModelFacts:
    """Collect the facts of a model.

    Args:
        graph: The stateful graph, `.bin` beside it.
        name: What to call the model.
        folder: A folder with config.json, generation_config.json, tokenizer_config.json, as far as they exist.
        metadata: The key-value pairs of a GGUF file.
        tokenizer: The tokenizer graph.

    Raises:
        GraphError: the graph is not a decoder that can be cut into layers.
        ExportError: a file is damaged, or no file says how long a context may be.
    """
    import openvino as ov

    sizes = _sizes(ov.Core().read_model(graph))

    def say() -> _Said:
        return _merge(
            _from_folder(folder) if folder else _Said(),
            _from_gguf(metadata or (_metadata_beside(folder) if folder else {})),
            _from_tokenizer(tokenizer) if tokenizer else _Said(),
        )

    return _facts(name, sizes, say, str(folder or name), str(folder or graph))


def of_gguf(file: GgufFile, name: str) -> ModelFacts:
    """The facts of a model without a graph, from its GGUF alone.

    Raises:
        ExportError: the file is damaged, or does not say how long a context may be.
    """

    def number(key: str) -> int | None:
        value = file.metadata.get(f"{file.architecture}.{key}")
        return max(value, default=None) if isinstance(value, list) else value

    where = str(file.path)
    embedding = file.tensor("token_embd.weight")
    try:
        width, heads = number("embedding_length") or 0, number("attention.head_count") or 1
        sizes = {
            "layers": number("block_count"),
            "hidden_size": width,
            "kv_heads": number("attention.head_count_kv") or heads,
            "head_size": max(number("attention.key_length") or width // heads, number("attention.value_length") or 0),
            "vocabulary": embedding.shape[-1] if embedding else 0,
            "weights": file.tensor_types,
        }
    except (ArithmeticError, TypeError, ValueError) as error:
        raise _senseless(f"{type(error).__name__}: {error}", where) from error
    return _facts(name, sizes, lambda: _from_gguf(file.metadata), where, where)


def _facts(name: str, sizes: Mapping[str, Any], say: Callable[[], _Said], where: str, sought: str) -> ModelFacts:
    """What the sizes of a model and its files together say.

    Args:
        name: What to call the model.
        sizes: What is known for sure.
        say: Reads what its files say.
        where: What those are, for errors.
        sought: Where a length of context should be.
    """
    try:
        said = say()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # anything may be in a file
        raise _senseless(f"{type(error).__name__}: {error}", where) from error
    if not said.context_length:
        raise ExportError(
            "no file says how long a context the model can take",
            where=sought,
            hint="Put its config.json (with max_position_embeddings) beside the graph.",
        )
    try:
        return ModelFacts(
            name=name,
            architecture=said.architecture,
            context_length=said.context_length,
            stop_tokens=tuple(sorted({token for token in said.stop_tokens if 0 <= token < sizes["vocabulary"]})),
            bos_token=said.bos_token if said.bos_token in range(sizes["vocabulary"]) else None,
            chat_template=said.chat_template,
            bos_text=said.bos_text or "",
            eos_text=said.eos_text or "",
            **sizes,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise _senseless(f"{first['loc'][0]}: {first['msg']}", where) from None


def _senseless(why: str, where: str) -> ExportError:
    return ExportError(
        f"what its files say of the model makes no sense: {why}",
        where=where,
        hint="Fetch the model again.",
    )


def _sizes(model: ov.Model) -> dict[str, Any]:
    """The facts that are in the graph."""
    from shards.graph import find_layers

    layers = find_layers(model)
    vocabulary = layers.result.input_value(0).get_partial_shape()[-1]
    if vocabulary.is_dynamic:
        raise ExportError("the width of the logits is not fixed in the graph", hint="Export the model again.")
    heads, head_sizes = zip(*(_heads(state) for pair in layers.caches for state in pair), strict=True)
    return {
        "layers": layers.depth,
        "hidden_size": layers.hidden_size,
        "kv_heads": max(heads),
        "head_size": max(head_sizes),
        "vocabulary": vocabulary.get_length(),
        "hidden_dtype": layers.edges[-1].output(0).get_element_type().get_type_name(),
        "weights": describe_weights(model),
    }


def _heads(state: ov.Node) -> tuple[int, int]:
    """(number of heads, size of a head) of a KV state: its two fixed axes; batch and length are free."""
    fixed = [axis.get_length() for axis in state.output(0).get_partial_shape() if axis.is_static]
    if len(fixed) != 2:
        shape = state.output(0).get_partial_shape()
        raise ExportError(
            f"the KV state {state.get_friendly_name()} has the shape {shape}, not [?, heads, ?, head size]"
        )
    return fixed[0], fixed[1]


def describe_weights(model: ov.Model) -> str:
    """How a graph stores its weights, most bytes first, e.g. 'int4 sym, group 128 + int8 asym, per channel'."""
    stored: Counter[tuple[str, int]] = Counter()
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Constant":
            continue
        shape = node.get_output_shape(0)
        if len(shape) >= 2 and list(shape)[-1] > 1:  # the others are norms, scales and zero points
            stored[_weight_kind(node)] += node.get_byte_size()
    groups: dict[str, list[int]] = {}
    for (kind, group), size in stored.most_common():
        if size > stored.total() / 50:  # a table of positions is not worth a word
            groups.setdefault(kind, []).append(group)
    words = []
    for kind, sizes in groups.items():
        if any(sizes):
            kind += f", group {'/'.join(str(size) for size in sizes if size)}"
        elif kind.startswith("int"):
            kind += ", per channel"
        words.append(kind)
    return " + ".join(words)


def _weight_kind(constant: ov.Node) -> tuple[str, int]:
    """(type, group size or 0) of one weight. A group is the last of three axes: [out, groups, group]."""
    dtype = constant.get_output_element_type(0).get_type_name()
    name = {"i4": "int4", "u4": "int4", "i8": "int8", "u8": "int8", "f16": "fp16", "bf16": "bf16", "f32": "fp32"}.get(
        dtype, dtype
    )
    if not name.startswith("int"):
        return name, 0
    offset = {reader.get_type_name() for reader in _after_convert(constant)} & {"Subtract"}
    shape = list(constant.get_output_shape(0))
    return f"{name} {'asym' if offset else 'sym'}", shape[-1] if len(shape) == 3 and shape[1] > 1 else 0


def _after_convert(node: ov.Node) -> Iterable[ov.Node]:
    for target in node.output(0).get_target_inputs():
        reader = target.get_node()
        if reader.get_type_name() == "Convert":
            yield from _after_convert(reader)
        else:
            yield reader


@dataclass(frozen=True, slots=True)
class _Said:
    """What one source says; None or empty where it is silent."""

    architecture: str | None = None
    context_length: int | None = None
    stop_tokens: tuple[int, ...] = ()
    bos_token: int | None = None
    chat_template: str | None = None
    bos_text: str | None = None
    eos_text: str | None = None


def _merge(*sources: _Said) -> _Said:
    """The first to say something is believed; stop tokens of all of them stop."""
    first: dict[str, Any] = {}
    for field in fields(_Said):
        values = [getattr(said, field.name) for said in sources]
        first[field.name] = next((value for value in values if value not in (None, ())), field.default)
    return _Said(**{**first, "stop_tokens": tuple(token for said in sources for token in said.stop_tokens)})


def _from_folder(folder: Path) -> _Said:
    """What the JSON files of a Hugging Face layout say."""
    config = _json(folder / "config.json")
    text = config.get("text_config")
    config |= text if isinstance(text, dict) else {}
    generation = _json(folder / "generation_config.json")
    tokenizer = _json(folder / "tokenizer_config.json")
    template = _template_of(folder, tokenizer)
    added = _added_tokens(folder, tokenizer)
    ids = {text: number for number, text in added.items()}
    eos_text = _token_text(tokenizer.get("eos_token"))
    stops = {*_ids(generation.get("eos_token_id")), *_ids(config.get("eos_token_id")), *_turn_ends(added, template)}
    if eos_text in ids:
        stops.add(ids[eos_text])
    bos_text = _token_text(tokenizer.get("bos_token"))
    bos = [*_ids(generation.get("bos_token_id")), *_ids(config.get("bos_token_id"))]
    limit = tokenizer.get("model_max_length")
    contexts = [config.get(key) for key in _CONTEXT_KEYS] + [limit if limit and limit < _UNLIMITED else None]
    return _Said(
        architecture=config.get("model_type"),
        context_length=next((int(context) for context in contexts if context), None),
        stop_tokens=tuple(stops),
        bos_token=ids.get(bos_text) if bos_text in ids else next(iter(bos), None),
        chat_template=template,
        bos_text=bos_text,
        eos_text=eos_text,
    )


def _template_of(folder: Path, tokenizer: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own, or in tokenizer_config.json, where a list names several."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    template = tokenizer.get("chat_template") or _json(folder / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template if {"name", "template"} <= entry.keys()}
        return named.get("default") or next(iter(named.values()), None)
    return template if isinstance(template, str) else None


def _added_tokens(folder: Path, tokenizer: Mapping[str, Any]) -> dict[int, str]:
    """Special tokens by id; they are in one of two files."""
    declared = tokenizer.get("added_tokens_decoder")
    if isinstance(declared, dict):
        return {int(number): str(token.get("content")) for number, token in declared.items() if token.get("special")}
    added = _json(folder / "tokenizer.json").get("added_tokens") or []
    return {int(token["id"]): str(token["content"]) for token in added if token.get("special")}


def _token_text(token: Any) -> str | None:
    """A token is written as its text, or as an object that holds it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _ids(value: Any) -> list[int]:
    """Token ids are written as one number, a list, or null."""
    return [number for number in (value if isinstance(value, list) else [value]) if isinstance(number, int)]


def _turn_ends(special: Mapping[int, str], template: str | None) -> set[int]:
    return {number for number, text in special.items() if text in _TURN_ENDS and text in (template or "")}


def _metadata_beside(folder: Path) -> Mapping[str, Any]:
    """The metadata of the one GGUF in a folder: openvino_genai puts the graph it makes beside the file it reads."""
    files = list(folder.glob("*.gguf"))
    return read_gguf(files[0]).metadata if len(files) == 1 else {}


def _from_gguf(metadata: Mapping[str, Any]) -> _Said:
    """What the metadata of a GGUF says."""
    architecture = metadata.get("general.architecture")
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    types = metadata.get("tokenizer.ggml.token_type") or []
    template = metadata.get("tokenizer.chat_template")
    bos, eos, eot, eom = (
        next(iter(_ids(metadata.get(f"tokenizer.ggml.{kind}_token_id"))), None) for kind in ("bos", "eos", "eot", "eom")
    )
    control = {number: tokens[number] for number, kind in enumerate(types[: len(tokens)]) if kind == _CONTROL}
    ends = {token for token in (eos, eot, eom) if token is not None}
    return _Said(
        architecture=architecture,
        context_length=metadata.get(f"{architecture}.context_length"),
        stop_tokens=tuple(ends | _turn_ends(control, template)),
        bos_token=bos,
        chat_template=template,
        bos_text=tokens[bos] if bos is not None and bos < len(tokens) else None,
        eos_text=tokens[eos] if eos is not None and eos < len(tokens) else None,
    )


def _from_tokenizer(graph: Path) -> _Said:
    """What a tokenizer graph carries along as runtime information."""
    try:
        info = ElementTree.parse(graph).getroot().find("rt_info")
    except (OSError, ElementTree.ParseError) as error:
        raise ExportError(
            f"the tokenizer cannot be read ({error})", where=str(graph), hint="Export it again."
        ) from None
    said = {node.tag: node.get("value") for node in (info if info is not None else ())}
    eos, bos = said.get("eos_token_id"), said.get("bos_token_id")
    return _Said(
        stop_tokens=(int(eos),) if eos else (),
        bos_token=int(bos) if bos else None,
        chat_template=said.get("chat_template"),
    )


def _json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no file."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, RecursionError, ValueError) as error:
        raise ExportError(
            f"the file cannot be read ({error})", where=str(path), hint="Fetch the model again."
        ) from None
    if not isinstance(content, dict):
        raise ExportError("the file holds no JSON object", where=str(path), hint="Fetch the model again.")
    return content
