"""What a package says of its GGUF may come from another PC: whatever it says, it is an error that tells, or a file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packages import llamacpp_package_of
from tiny_gguf import write_tiny_gguf

from shards import manifest as manifests
from shards.errors import PackageError
from shards.llamacpp import metadata, stage_file
from shards.manifest import LLAMACPP_METADATA

LAYERS = 4
NUMBERS = (0, -1, 1, 63, 2**31, 2**32 - 1, 2**32, 2**42 + 1, 2**63, 2**64, 10**30, 1.5, -0.0, math.inf)
OTHERS = ("", "x" * 100, "blk.0.attn_q.weight", "blk.99999999999.x", None, True, [], [1], [[]], {})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    return llamacpp_package_of(write_tiny_gguf(folder / "tiny.gguf", layers=LAYERS), folder / "package")


def places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key or index) of each value in a document."""
    found: list[tuple[Any, Any]] = []
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        found += [(value, key), *places(value[key])]
    return found


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_metadata_never_ends_in_another_error(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    document = json.loads((tiny / LLAMACPP_METADATA).read_text("utf-8"))
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(document)))
        container[key] = data.draw(st.sampled_from(NUMBERS + OTHERS))
    path = tmp_path_factory.mktemp("damaged") / "metadata.json"
    path.write_text(json.dumps(document), "utf-8")
    try:
        model = metadata.read(path)
    except PackageError as error:
        assert str(path) in str(error)
        return
    assert model.depth == LAYERS
    for first, end in ((0, 1), (1, 3), (0, LAYERS)):
        layout = stage_file.lay_out(model, first, end)
        assert len(layout.head) <= layout.length < 2**64
        assert all(len(layout.head) <= place <= layout.length for place in layout.places)


@pytest.mark.parametrize("span", [[0, 10**12], [-5, 10], [2**70, 2**71]])
def test_byte_ranges_that_are_not_in_the_file_are_refused(tiny: Path, tmp_path: Path, span: list[int]) -> None:
    document = json.loads((tiny / manifests.MANIFEST).read_text("utf-8"))
    document["llamacpp"]["layers"][1] = [span]
    (tmp_path / manifests.MANIFEST).write_text(json.dumps(document), "utf-8")
    with pytest.raises(PackageError, match=r"the manifest is damaged: .*are not in the weights, which have \d+"):
        manifests.read(tmp_path)
