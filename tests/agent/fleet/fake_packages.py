"""Packages of random bytes: all that moves and checks bytes works with them as with real ones."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np

from shards import manifest as manifests
from shards.manifest import GRAPH, PIECE_BYTES, WEIGHTS, FileEntry, Manifest, ModelFacts, WeightSpans

LAYERS = 4


def make_package(folder: Path, size: int, *, seed: int = 0) -> Manifest:
    """Make a package of four layers whose weights have `size` bytes: an equal part for each layer."""
    contents = {GRAPH: b"<net/>", WEIGHTS: np.random.default_rng(seed).bytes(size)}
    entries = []
    for path, data in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
        hashes = tuple(hashlib.sha256(piece).hexdigest() for piece in pieces)
        entries.append(FileEntry(path=path, size=len(data), pieces=hashes))
    facts = ModelFacts(
        name="toy", architecture=None, layers=LAYERS, hidden_size=8, kv_heads=1, head_size=8, vocabulary=16,
        context_length=64, stop_tokens=(), weights="fp32",
    )  # fmt: skip
    edges = [size * layer // LAYERS for layer in range(LAYERS + 1)]
    layers = tuple(((start, end),) for start, end in pairwise(edges))
    spans = WeightSpans(shared=((0, 100),), embedding=(), layers=layers, head=())
    manifest = Manifest(facts=facts, spans=spans, files=tuple(entries))
    manifests.write(folder, manifest)
    return manifest
