"""A split graph computes what the whole one does, at every split point of every family."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from cut_chains import Graph, Split, half_splits, run_paged, run_stateful, splits
from numpy.typing import NDArray
from zoo import FAMILIES, LAYERS, LENGTHS, build_families, family_ir, family_reference

STEPS = ((5, 20, 30), (0, 13, 40))
"""Rows of the three reference sequences in each of two ragged steps."""

HALVED = ("llama", "gptoss", "granite")
"""Families that are also cut within a layer, once; with --exhaustive all are, at every place."""

Sequences = list[tuple[NDArray[np.int64], NDArray[np.float32]]]


@pytest.fixture(scope="module", autouse=True)
def _zoo() -> None:
    build_families()


@pytest.fixture(scope="module")
def family(request: pytest.FixtureRequest) -> Iterator[tuple[Graph, Sequences, list[NDArray[np.float32]]]]:
    """The graph, its reference sequences with transformers' logits, and the unsplit graph's logits of them."""
    graph, reference = Graph(family_ir(request.param) / "openvino_model.xml"), family_reference(request.param)
    whole = graph.whole()
    yield graph, reference, [run_stateful([whole], ids, [len(ids)]) for ids, _ in reference]


def check(logits: NDArray[np.float32], whole: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    assert np.abs(logits - whole).max() <= 1e-4
    assert np.abs(logits - theirs).max() <= 1e-3


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Which family is split where."""
    if "split" in metafunc.fixturenames:
        everything = metafunc.config.getoption("exhaustive")
        pairs = [(name, split) for name in FAMILIES for split in splits(LAYERS)]
        for name in FAMILIES if everything else HALVED:
            pairs += [(name, split) for split in half_splits(LAYERS)[: None if everything else 1]]
        pairs.sort(key=lambda pair: FAMILIES.index(pair[0]))  # each is loaded once
        metafunc.parametrize(("family", "split"), pairs, indirect=["family"], ids=str)


def test_stateful_split_equals_whole(family: tuple, split: Split) -> None:
    graph, reference, whole = family
    chain = [graph.stateful(*layers) for layers in split]
    for (ids, theirs), want in zip(reference, whole, strict=True):
        chunks = [len(ids)] if len(ids) < LENGTHS[-1] else [len(ids) - 1, 1]
        check(run_stateful(chain, ids, chunks), want, theirs)


def test_paged_split_equals_whole(family: tuple, split: Split) -> None:
    graph, reference, whole = family
    chain = [graph.paged(*layers) for layers in split]
    got = run_paged(chain, [ids for ids, _ in reference], STEPS)
    for logits, (_, theirs), want in zip(got, reference, whole, strict=True):
        check(logits, want, theirs)
