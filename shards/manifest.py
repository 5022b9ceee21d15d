"""The manifest of a model package: what the model is, and which bytes of its weights each layer needs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shards.errors import PackageError

if TYPE_CHECKING:
    from shards.runtime import EngineName

FORMAT = 1
"""Version of the package layout; a package with a larger one is refused."""

PIECE_BYTES = 4 * 2**20
"""Unit of verification: each file has one SHA-256 for every 4 MiB."""

MANIFEST = "manifest.json"
GRAPH = "openvino/graph.xml"
WEIGHTS = "openvino/weights.bin"
LLAMACPP_METADATA = "llamacpp/metadata.json"
LLAMACPP_TENSORS = "llamacpp/tensors.bin"
TOKENIZER = "tokenizer/openvino_tokenizer.xml"
DETOKENIZER = "tokenizer/openvino_detokenizer.xml"
DRAFT_VOCABULARY = "openvino/draft_vocabulary.bin"
"""Of a trimmed package: the token id of each column of the logits, int32 little-endian, ascending."""

_AGAIN = "Export the model again."

Span = tuple[int, int]
"""Bytes [start, end) of the weights file."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelFacts(_Frozen):
    """What the planner, the scheduler and the tokenizer need to know of a model."""

    name: str
    architecture: str | None = Field(description="the source's own word for it; for people, never for code")
    layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_size: int = Field(gt=0, description="of the larger of key and value")
    vocabulary: int = Field(gt=0, description="token ids there are")
    draft_vocabulary: int | None = Field(
        None, gt=0, description="width of the logits of a draft model whose head knows only so many tokens; None: all"
    )
    context_length: int = Field(gt=0)
    stop_tokens: tuple[int, ...]
    bos_token: int | None = None
    chat_template: str | None = None
    bos_text: str = Field("", description="the text of the BOS token, for chat templates")
    eos_text: str = Field("", description="the text of the EOS token, for chat templates")
    hidden_dtype: str = Field("f32", description="element type of the hidden state at the cuts")
    weights: str = Field(description="how the weights are stored, e.g. 'int4 sym, group 128'")

    @property
    def logits(self) -> int:
        """Width of the logits."""
        return self.draft_vocabulary or self.vocabulary


class FileEntry(_Frozen):
    """A file of the package: its path (posix, relative), size in bytes, and SHA-256 of each piece."""

    path: str
    size: int = Field(ge=0)
    pieces: tuple[str, ...]

    @model_validator(mode="after")
    def _sound(self) -> Self:
        # a manifest can come from another PC: it must not name files outside the package's folder
        if any(part in ("", ".", "..") for part in self.path.split("/")) or set(self.path) & set("\\:"):
            raise ValueError(f"{self.path!r} is not a path inside the package")
        if len(self.pieces) != -(-self.size // PIECE_BYTES):
            raise ValueError(f"{self.size} bytes have {-(-self.size // PIECE_BYTES)} pieces, not {len(self.pieces)}")
        return self


class WeightSpans(_Frozen):
    """Byte ranges of a backend's weights file by who needs them; sorted, merged, half-open."""

    shared: tuple[Span, ...] = Field(description="small constants every stage needs to read the graph")
    embedding: tuple[Span, ...] = Field(description="the first stage besides its layers")
    layers: tuple[tuple[Span, ...], ...] = Field(description="each decoder layer")
    head: tuple[Span, ...] = Field(description="the tail besides its layers: final norm and head matrix")

    @classmethod
    def nothing(cls, layers: int) -> Self:
        """Of a model of so many layers, for a backend that is not there."""
        return cls(shared=(), embedding=(), layers=((),) * layers, head=())

    def all(self) -> tuple[Span, ...]:
        """The merged ranges of the whole model."""
        return self.of_stage(0, len(self.layers))

    def of_stage(self, first: int, end: int) -> tuple[Span, ...]:
        """The merged ranges a stage with layers [first, end) needs."""
        spans = [*self.shared]
        for layer in self.layers[first:end]:
            spans += layer
        if first == 0:
            spans += self.embedding
        if end == len(self.layers):
            spans += self.head
        return merge(spans)


class StageOf(_Frozen):
    """Marks a stage folder: its graph is not the model's but already the cut stage."""

    package_id: str = Field(description="of the package it was cut from")
    first_layer: int = Field(ge=0)
    end_layer: int = Field(gt=0)


class Manifest(_Frozen):
    """`manifest.json` of a model package, or of a stage folder cut from one."""

    format: int = FORMAT
    facts: ModelFacts
    spans: WeightSpans = Field(description="of the OpenVINO backend; all empty in a package without it")
    llamacpp: WeightSpans | None = Field(None, description="of the llama.cpp backend; None: the package has none")
    files: tuple[FileEntry, ...]
    stage: StageOf | None = Field(None, description="None: the whole model")
    source: dict[str, Any] = Field(default_factory=dict, description="where it came from; for people")
    created_with: dict[str, str] = Field(default_factory=dict, description="versions of the tools that made it")

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.files)

    @property
    def package_id(self) -> str:
        """Names the content: SHA-256, hex, of all that decides what the package computes.

        Equal ids mean equal files, facts and byte ranges; where and with what it was made does not count.
        """
        about = {"format", "source", "created_with"}
        content = self.model_dump(mode="json", exclude=about, exclude_defaults=True)
        content["files"].sort(key=lambda file: file["path"])
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @model_validator(mode="after")
    def _sound(self) -> Self:
        for spans, path in ((self.spans, WEIGHTS), (self.llamacpp, LLAMACPP_TENSORS)):
            if spans is None:
                continue
            if len(spans.layers) != self.facts.layers:
                raise ValueError(f"the model has {self.facts.layers} layers, spans of {len(spans.layers)} are given")
            size = next((f.size for f in self.files if f.path == path), 0)
            for start, end in spans.all():
                if not 0 <= start <= end <= size:
                    raise ValueError(f"bytes {start}-{end} are not in the weights, which have {size}")
        wanted = None if self.facts.draft_vocabulary is None else 4 * self.facts.draft_vocabulary
        listed = next((f.size for f in self.files if f.path == DRAFT_VOCABULARY), None)
        if listed != wanted:
            raise ValueError(f"{DRAFT_VOCABULARY} has {listed} bytes, a head of these facts wants {wanted}")
        return self

    @property
    def has_openvino(self) -> bool:
        """Whether the package has the OpenVINO backend."""
        return self.llamacpp is None or any(entry.path == GRAPH for entry in self.files)

    @property
    def main_spans(self) -> WeightSpans:
        """The byte ranges of the OpenVINO backend, or else of the one there is."""
        return self.llamacpp if self.llamacpp is not None and not self.has_openvino else self.spans

    def spans_for(self, engine: EngineName) -> WeightSpans:
        """The byte ranges of the weights that an engine reads.

        Raises:
            PackageError: the package does not have its backend.
        """
        if engine == "llamacpp":
            if self.llamacpp is None:
                raise PackageError(
                    "the package has no llama.cpp backend",
                    where=self.facts.name,
                    hint="Export the model's GGUF again with --backend both, or use an OpenVINO engine.",
                )
            return self.llamacpp
        if not self.has_openvino:
            raise PackageError(
                "the package has the llama.cpp backend alone", where=self.facts.name, hint="Use: --engine llamacpp"
            )
        return self.spans

    def check_whole_vocabulary(self, *, where: Path) -> None:
        """See that the model can answer by itself; raises PackageError for a draft with a trimmed head."""
        facts = self.facts
        if facts.draft_vocabulary is not None:
            raise PackageError(
                f"{facts.name} knows {facts.draft_vocabulary} of {facts.vocabulary} tokens (it was exported with"
                " --draft-vocabulary), so it can be a draft and nothing else",
                where=str(where),
                hint="Serve the model it was made for, with this package as its --draft.",
            )

    def check_layers(self, first: int, end: int, *, where: Path) -> None:
        """See that a stage with layers [first, end) can be loaded from here; raises PackageError if not."""
        depth = self.facts.layers
        if not 0 <= first < end <= depth:
            raise PackageError(f"layers {first}-{end} were asked for, the model has 0-{depth}", where=str(where))
        mine = self.stage
        if mine is not None and (first, end) != (mine.first_layer, mine.end_layer):
            raise PackageError(
                f"this folder is the stage of layers {mine.first_layer}-{mine.end_layer}, {first}-{end} were asked for",
                where=str(where),
                hint="Use the model package for other layers.",
            )

    def file(self, path: str) -> FileEntry:
        """The entry of one file; raises PackageError if the package does not list it."""
        for entry in self.files:
            if entry.path == path:
                return entry
        raise PackageError(f"the manifest lists no {path}", where=MANIFEST, hint=_AGAIN)


def merge(spans: list[Span]) -> tuple[Span, ...]:
    """Sort ranges and join those that touch or overlap."""
    merged: list[list[int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return tuple((start, end) for start, end in merged)


def read(package: Path) -> Manifest:
    """Read and check `package/manifest.json`.

    Raises:
        PackageError: missing, not a manifest, or written by a newer version of edge-agent.
    """
    path = package / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise PackageError(
            "there is no manifest here, so this is not a model package",
            where=str(package),
            hint="Make one with: edge-agent export SOURCE -o PACKAGE",
        ) from None
    except OSError as error:
        raise PackageError(f"the manifest cannot be read ({error})", where=str(path), hint=_AGAIN) from None
    return parse(data, where=str(path))


def parse(data: bytes, *, where: str) -> Manifest:
    """Check a manifest that comes from `where`.

    Raises:
        PackageError: not a manifest, or written by a newer version of edge-agent.
    """
    try:
        raw = json.loads(data)
    except (RecursionError, ValueError) as error:
        raise PackageError(f"the manifest cannot be read ({error})", where=where, hint=_AGAIN) from None
    if not isinstance(raw, dict) or not isinstance(raw.get("format"), int):
        raise PackageError("the manifest has no format number", where=where, hint=_AGAIN)
    if raw["format"] > FORMAT:
        raise PackageError(
            f"the package has format {raw['format']}, this edge-agent reads up to {FORMAT}",
            where=where,
            hint="Update edge-agent, or export the model again with this version.",
        )
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(p) for p in first["loc"])
        raise PackageError(f"the manifest is damaged: {field}: {first['msg']}", where=where, hint=_AGAIN) from None


def write(package: Path, manifest: Manifest) -> None:
    """Write the manifest last and atomically: a folder without one is never taken for a package."""
    path = package / MANIFEST
    partial = path.with_suffix(".partial")
    partial.write_text(manifest.model_dump_json(indent=1), "utf-8")
    partial.replace(path)
