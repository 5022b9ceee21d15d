"""Packages made from parts, for tests that need their own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

from exporters import facts, llamacpp
from exporters.package import write_package
from exporters.sources.gguf_file import read_gguf
from shards import manifest as manifests
from shards.graph import layer_spans
from shards.progress import silent


def package_of(ir: Path, folder: Path) -> Path:
    """Index an OpenVINO IR folder without a tokenizer into a package at `folder`."""
    graph = ir / "openvino_model.xml"
    write_package(
        folder,
        {manifests.GRAPH: graph, manifests.WEIGHTS: graph.with_suffix(".bin")},
        facts.read(graph, name=folder.name, folder=ir),
        layer_spans(graph),
        source={},
        scratch=folder,
        progress=silent,
    )
    return folder


def llamacpp_package_of(gguf: Path, folder: Path) -> Path:
    """Make a package without a tokenizer of a GGUF, for llama.cpp alone."""
    file = read_gguf(gguf)
    model = llamacpp.metadata_of(file)
    files = {path: folder / path for path in (manifests.LLAMACPP_METADATA, manifests.LLAMACPP_TENSORS)}
    (folder / manifests.LLAMACPP_METADATA).parent.mkdir(parents=True)
    llamacpp.write_files(file, model, *files.values())
    write_package(
        folder,
        files,
        facts.of_gguf(file, folder.name),
        manifests.WeightSpans.nothing(model.depth),
        llamacpp=llamacpp.spans_of(model),
        source={"path": str(gguf)},
        scratch=folder,
        progress=silent,
    )
    return folder


def with_tokenizer(ir: Path, tokenizers: Path, folder: Path) -> Path:
    """An OpenVINO IR folder of one model with the tokenizer of another; its files are links."""
    folder.mkdir(exist_ok=True)
    for path in (*ir.glob("openvino_model.*"), *ir.glob("config.json"), *tokenizers.glob("openvino_*tokenizer.*")):
        if not (folder / path.name).exists():
            link(path, folder / path.name)
    return folder


def ir_of(package: Path, folder: Path) -> Path:
    """Make a package a source: an OpenVINO IR folder in optimum's layout. Its files are links: never change them."""
    folder.mkdir()
    facts = manifests.read(package).facts
    for path, name in (
        (manifests.GRAPH, "openvino_model.xml"),
        (manifests.WEIGHTS, "openvino_model.bin"),
        (manifests.TOKENIZER, "openvino_tokenizer.xml"),
        (manifests.DETOKENIZER, "openvino_detokenizer.xml"),
    ):
        link(package / path, folder / name)
        if path.startswith("tokenizer/"):
            link((package / path).with_suffix(".bin"), (folder / name).with_suffix(".bin"))
    config = {"model_type": "llama", "max_position_embeddings": facts.context_length, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def link(source: Path, target: Path) -> None:
    """A second name for a file, or a copy where the two are on different file systems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def rehash(package: Path) -> None:
    """Make the manifest say of the files what they hold now."""
    manifest = manifests.read(package)
    files = []
    for entry in manifest.files:
        content = (package / entry.path).read_bytes()
        pieces = [content[at : at + manifests.PIECE_BYTES] for at in range(0, len(content), manifests.PIECE_BYTES)]
        hashes = tuple(hashlib.sha256(piece).hexdigest() for piece in pieces)
        files.append(entry.model_copy(update={"pieces": hashes}))
    manifests.write(package, manifest.model_copy(update={"files": tuple(files)}))
