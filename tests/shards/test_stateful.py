"""What only the stateful engine does: hiding rows, writing caches again, and feeding only the inputs there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from chains import CLOSE, Chain, chain
from openvino import opset13 as op
from packages import package_of
from unsplit import Whole
from zoo import LAYERS, VOCABULARY, family_ir

from shards.openvino_stateful import HIDDEN_SHARE, StatefulStage

TOKENS = np.random.default_rng(3).integers(3, VOCABULARY, 200).tolist()
ENGINE = "openvino-stateful"


def cached_rows(stages: Chain, sequence: int) -> set[int]:
    """Rows in the caches of a sequence, hidden ones included."""
    stage = stages.stages[0]
    assert isinstance(stage, StatefulStage)
    return {state.state.shape[2] for state in stage._sequences[sequence].request.query_state()}


def test_a_small_rollback_only_hides(tiny_package: Path) -> None:
    with chain(tiny_package, (0, LAYERS), engine=ENGINE) as one:
        one.rows(1, 0, TOKENS[:50])
        one.rows(1, 45, TOKENS[45:47])
        assert cached_rows(one, 1) == {52}


def test_hidden_rows_are_dropped_when_they_are_many(tiny_package: Path) -> None:
    want = Whole(tiny_package).logits(TOKENS[:100])
    most = 0
    with chain(tiny_package, (0, LAYERS), engine=ENGINE) as one:
        one.rows(1, 0, TOKENS[:20])
        for position in range(20, 90):
            got = one.rows(1, position, [TOKENS[position], *TOKENS[140:143]])[0]
            np.testing.assert_allclose(got, want[position], rtol=0, atol=CLOSE)
            (rows,) = cached_rows(one, 1)
            assert rows <= (position + 4) / (1 - HIDDEN_SHARE)
            most = max(most, rows - position - 4)
    assert most > 0


def test_rolling_back_to_nothing_empties_the_cache(tiny_package: Path) -> None:
    with chain(tiny_package, (0, LAYERS), engine=ENGINE) as one:
        one.rows(1, 0, TOKENS[:50])
        one.rows(1, 0, TOKENS[:3])
        assert cached_rows(one, 1) == {3}


def test_the_request_of_a_freed_sequence_is_used_again(tiny_package: Path) -> None:
    with chain(tiny_package, (0, LAYERS), engine=ENGINE) as one:
        (stage,) = one.stages
        assert isinstance(stage, StatefulStage)
        one.rows(1, 0, TOKENS[:50])
        request = stage._sequences[1].request
        one.free(1)
        one.rows(2, 0, TOKENS[:4])
        assert stage._sequences[2].request is request
        assert cached_rows(one, 2) == {4}


def _without_beams(model: ov.Model) -> None:
    """Caches straight from their states, as a graph without beam search has them."""
    beams = next(p for p in model.get_parameters() if "beam_idx" in p.output(0).names)
    for port in beams.output(0).get_target_inputs():
        gather = port.get_node()
        for reader in gather.output(0).get_target_inputs():
            reader.replace_source_output(gather.input_value(0))
    model.remove_parameter(beams)


def _without_positions(model: ov.Model) -> None:
    """Positions counted from what is cached, as a graph without such an input must."""
    positions = next(p for p in model.get_parameters() if "position_ids" in p.output(0).names)
    token = next(p for p in model.get_parameters() if "input_ids" in p.output(0).names)
    state = next(n for n in model.get_ordered_ops() if n.get_type_name() == "ReadValue")
    cache = next(t.get_node() for t in state.output(0).get_target_inputs() if t.get_node().get_type_name() == "Gather")

    def size(node: ov.Node, axis: int) -> ov.Node:
        shape = op.shape_of(node, "i64")
        return op.gather(shape, op.constant(np.array(axis, np.int64)), op.constant(np.array(0, np.int64)))

    past = size(cache, 2)
    one = op.constant(np.array(1, np.int64))
    counted = op.unsqueeze(op.range(past, op.add(past, size(token, 1)), one, "i64"), op.constant(np.array(0, np.int64)))
    for port in positions.output(0).get_target_inputs():
        port.replace_source_output(counted.output(0))
    model.remove_parameter(positions)


@pytest.mark.parametrize("change", [_without_beams, _without_positions])
def test_only_the_inputs_there_are_get_fed(change: Callable[[ov.Model], None], tmp_path: Path) -> None:
    source = family_ir("llama")
    model = ov.Core().read_model(source / "openvino_model.xml")
    change(model)
    model.validate_nodes_and_infer_types()
    ov.save_model(model, tmp_path / "ir" / "openvino_model.xml", compress_to_fp16=False)
    (tmp_path / "ir" / "config.json").write_bytes((source / "config.json").read_bytes())
    package = package_of(tmp_path / "ir", tmp_path / "package")
    want = Whole(package).logits(TOKENS[:60])
    with chain(package, (0, LAYERS), engine=ENGINE) as one:
        one.rows(1, 0, TOKENS[:40])
        one.rows(1, 40, TOKENS[100:103])
        np.testing.assert_allclose(one.rows(1, 40, TOKENS[40:60]), want[40:], rtol=0, atol=CLOSE)
