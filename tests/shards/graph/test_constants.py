"""A stage can be made from the graph and its own ranges of the weights, and needs no byte more."""

from __future__ import annotations

from itertools import combinations
from math import ceil, floor
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from cut_chains import EXACT, infer
from decoder import Decoder
from zoo import LAYERS, family_ir

from shards.errors import GraphError
from shards.graph import constant_ranges, cut_stage, layer_spans
from shards.graph.constants import SMALL_BYTES
from shards.manifest import GRAPH, WEIGHTS, Span, merge

FAMILIES = ("qwen2", "phi3", "gptoss", "qwen3moe")  # tied head, fused projections, two kinds of experts


def constants(stage: ov.Model, ranges: dict[str, Span]) -> dict[str, bytes]:
    """The constants of a stage that come from the weights file."""
    nodes = [node for node in stage.get_ordered_ops() if node.get_type_name() == "Constant"]
    return {n.get_friendly_name(): n.data.tobytes() for n in nodes if n.get_friendly_name() in ranges}


def needed(stage: ov.Model, ranges: dict[str, Span]) -> tuple[Span, ...]:
    """The ranges of a stage as it is, and the small ones that the reader wants."""
    used = [ranges[name] for name in constants(stage, ranges)]
    return merge(used + [span for span in ranges.values() if span[1] - span[0] <= SMALL_BYTES])


def sparse_copy(source: Path, spans: tuple[Span, ...], target: Path) -> None:
    with source.open("rb") as whole, target.open("wb") as part:
        part.truncate(source.stat().st_size)
        for start, end in spans:
            whole.seek(start)
            part.seek(start)
            part.write(whole.read(end - start))


@pytest.mark.parametrize("family", FAMILIES)
def test_spans_of_every_stage_are_exact(family: str) -> None:
    xml = family_ir(family) / "openvino_model.xml"
    spans, ranges = layer_spans(xml), constant_ranges(xml)
    for first, end in combinations(range(LAYERS + 1), 2):
        stage = cut_stage(ov.Core().read_model(xml), first, end)
        assert spans.of_stage(first, end) == needed(stage, ranges)


@pytest.mark.parametrize("family", FAMILIES)
def test_spans_cover_the_stages_of_a_divided_layer(family: str) -> None:
    xml = family_ir(family) / "openvino_model.xml"
    spans, ranges = layer_spans(xml), constant_ranges(xml)
    for begin, end in ((0, 1.5), (1.5, LAYERS)):
        own = needed(cut_stage(ov.Core().read_model(xml), begin, end), ranges)
        covered = spans.of_stage(floor(begin), ceil(end))
        assert merge([*covered, *own]) == covered
        assert sum(stop - start for start, stop in own) < sum(stop - start for start, stop in covered)


def test_tied_embedding_belongs_to_both_ends() -> None:
    spans = layer_spans(family_ir("qwen2") / "openvino_model.xml")
    shared = set(spans.embedding) & set(spans.head)
    assert max(end - start for start, end in shared) == 1024 * 128 * 4


@pytest.mark.parametrize("layers", [(0, 1), (1, 3), (3, 4), (0, 4)], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_stage_from_its_ranges_computes_the_same(family: str, layers: tuple[int, int], tmp_path: Path) -> None:
    xml = family_ir(family) / "openvino_model.xml"
    part = tmp_path / "weights.bin"
    sparse_copy(xml.with_suffix(".bin"), layer_spans(xml).of_stage(*layers), part)
    core = ov.Core()
    x = np.random.default_rng(0).normal(size=(1, 7, 128)).astype(np.float32)
    feed = {
        "input_ids": np.arange(3, 10)[None],
        "inputs_embeds": x,
        "attention_mask": np.ones((1, 7), np.int64),
        "position_ids": np.arange(7)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    outputs = []
    for weights in (xml.with_suffix(".bin"), part):
        stage = cut_stage(core.read_model(xml, weights), *layers)
        outputs.append(infer(core.compile_model(stage, "CPU", EXACT).create_infer_request(), feed))
    assert np.array_equal(*outputs)


@pytest.mark.parametrize("layers", [(0, 10), (10, 11), (10, 20), (20, 30)], ids=str)
def test_real_stage_from_its_ranges_is_identical(
    smollm2_package: Path, layers: tuple[int, int], tmp_path: Path
) -> None:
    xml, whole, part = smollm2_package / GRAPH, smollm2_package / WEIGHTS, tmp_path / "weights.bin"
    ranges, core = constant_ranges(xml), ov.Core()
    spans = layer_spans(xml, whole).of_stage(*layers)
    sparse_copy(whole, spans, part)
    stages = [cut_stage(core.read_model(xml, weights), *layers) for weights in (whole, part)]
    assert spans == needed(stages[0], ranges)
    assert constants(stages[0], ranges) == constants(stages[1], ranges)
    kinds = [[node.get_type_name() for node in stage.get_ordered_ops()] for stage in stages]
    assert kinds[0] == kinds[1]
    assert sum(end - start for start, end in spans) < whole.stat().st_size * 0.7


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ("", "cannot be read"),
        ("<net><layers/></net>", "holds no weights"),
        (
            '<net><layers><layer type="Const" name="a"><data offset="x" size="4"/></layer></layers></net>',
            "cannot be read",
        ),
        ('<net><layers><layer type="Const" name="a"/><layer type="Const" name="a"/></layers></net>', "named a"),
    ],
)
def test_file_that_is_no_graph_is_refused(text: str | None, says: str, tmp_path: Path) -> None:
    xml = tmp_path / "graph.xml"
    if text is not None:
        xml.write_text(text, "utf-8")
    with pytest.raises(GraphError, match=says) as caught:
        layer_spans(xml)
    assert caught.value.where == str(xml)


def test_graph_without_weights_file_is_refused(tmp_path: Path) -> None:
    xml = tmp_path / "graph.xml"
    ov.save_model(Decoder().build(), xml, compress_to_fp16=False)
    xml.with_suffix(".bin").unlink()
    with pytest.raises(GraphError, match="OpenVINO cannot read the graph") as caught:
        layer_spans(xml)
    assert caught.value.where == str(xml)


def test_graph_that_cannot_be_cut_is_named_by_its_file(tmp_path: Path) -> None:
    xml = tmp_path / "graph.xml"
    ov.save_model(Decoder(oddity="two outputs").build(), xml, compress_to_fp16=False)
    with pytest.raises(GraphError, match="needs one output") as caught:
        layer_spans(xml)
    assert caught.value.where == str(xml)
