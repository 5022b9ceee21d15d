"""What a stage keeps, and stages of hand-written graphs against the whole."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import openvino as ov
import pytest
from cut_chains import EXACT, Split, run_stateful, splits
from decoder import VOCABULARY, Decoder, Oddity

from shards.errors import GraphError
from shards.graph import cut_stage, depth, find_layers, gather_output_rows, make_paged

LAYERS = 3
CHUNKS = (7, 1, 4)


def names(ports: list[ov.Output]) -> set[str]:
    return {name for port in ports for name in port.names}


def compiled(model: ov.Model) -> ov.InferRequest:
    return ov.Core().compile_model(model, "CPU", EXACT).create_infer_request()


def weights(model: ov.Model) -> list[bytes]:
    """The larger constants."""
    constants = (node for node in model.get_ordered_ops() if node.get_type_name() == "Constant")
    return sorted(node.data.tobytes() for node in constants if node.get_byte_size() >= 512)


def test_whole_range_is_the_graph_itself() -> None:
    model = Decoder(LAYERS).build()
    before = [node.get_name() for node in model.get_ordered_ops()]
    assert [node.get_name() for node in cut_stage(model, 0, LAYERS).get_ordered_ops()] == before


@pytest.mark.parametrize(("first", "end"), [(0, 1), (1, 2), (1, 3), (2, 3)])
def test_stage_has_its_ends_and_its_own_caches(first: int, end: int) -> None:
    stage = cut_stage(Decoder(LAYERS).build(), first, end)
    assert names(stage.inputs) == {"inputs_embeds" if first else "input_ids", "attention_mask", "beam_idx"}
    assert names(stage.outputs) == {"logits" if end == LAYERS else "hidden_states"}
    own = {f"{k}.{what}" for k in range(first, end) for what in ("key", "value")}
    assert {variable.info.variable_id for variable in stage.get_variables()} == own
    assert {sink.get_attributes()["variable_id"] for sink in stage.get_sinks()} == own
    assert depth(stage) == end - first


@pytest.mark.parametrize(("begin", "end", "own"), [(0, 1.5, (0, 1)), (0.5, 1.5, (1,)), (1.5, 3, (2,))])
def test_a_cache_is_where_its_attention_is(begin: float, end: float, own: tuple[int, ...]) -> None:
    stage = cut_stage(Decoder(LAYERS).build(), begin, end)
    caches = {f"{k}.{what}" for k in own for what in ("key", "value")}
    assert {variable.info.variable_id for variable in stage.get_variables()} == caches
    assert {sink.get_attributes()["variable_id"] for sink in stage.get_sinks()} == caches
    assert depth(stage) == len(own)


def test_stages_of_a_divided_layer_have_no_weights_in_common() -> None:
    stages = [cut_stage(Decoder(LAYERS).build(), *layers) for layers in ((0, 1.5), (1.5, LAYERS))]
    assert sorted(weights(stages[0]) + weights(stages[1])) == weights(Decoder(LAYERS).build())


@pytest.mark.parametrize("first", [0, 1])
def test_stage_keeps_what_the_plugins_match(first: int) -> None:
    """The reordering by beam_idx right behind each state, and the state's initial value."""
    stage = cut_stage(Decoder(LAYERS).build(), first, first + 1)
    for state in find_layers(stage).caches[0]:
        readers = [port.get_node() for port in state.output(0).get_target_inputs()]
        gather = next(node for node in readers if node.get_type_name() == "Gather")
        assert gather.input_value(1).names == {"beam_idx"}
        assert state.get_input_size() == 1


def test_runtime_options_survive_a_cut() -> None:
    model = Decoder(LAYERS).build()
    model.set_rt_info("8", ["runtime_options", "ACTIVATIONS_SCALE_FACTOR"])
    stage = cut_stage(model, 1, 2)
    assert stage.get_rt_info(["runtime_options", "ACTIVATIONS_SCALE_FACTOR"]).astype(str) == "8"


def test_cutting_a_stage_again_gives_the_same_layers() -> None:
    for first, end in combinations(range(LAYERS), 2):
        once = cut_stage(Decoder(LAYERS).build(), first, end)
        stage = cut_stage(Decoder(LAYERS).build(), 0, end)
        assert weights(cut_stage(stage, first, end)) == weights(once)


@pytest.mark.parametrize("oddity", [None, "soft cap", "flat rows measured"])
@pytest.mark.parametrize("split", [*splits(LAYERS), ((0, 1.5), (1.5, LAYERS))], ids=str)
def test_chain_equals_whole(oddity: Oddity | None, split: Split) -> None:
    ids = np.random.default_rng(1).integers(0, VOCABULARY, 12)
    want = run_stateful([compiled(Decoder(LAYERS, oddity).build())], ids, CHUNKS)
    stages = [cut_stage(Decoder(LAYERS, oddity).build(), *layers) for layers in split]
    gather_output_rows(stages[-1])
    got = run_stateful([compiled(stage) for stage in stages], ids, CHUNKS)
    assert np.abs(got - want).max() <= 1e-5


def test_measure_that_a_cut_cannot_replace_is_refused() -> None:
    model = Decoder(LAYERS).build()
    layers = find_layers(model)
    # the head's input is shaped like something of layer 0 that batch and rows do not tell
    cube = ov.opset13.reshape(layers.edges[1], np.array([-1, 2, 8]), False)
    odd = ov.opset13.reshape(layers.edges[3], ov.opset13.shape_of(cube), False)
    back = ov.opset13.reshape(odd, ov.opset13.shape_of(layers.edges[3]), False)
    head = layers.result.input_value(0).get_node()
    head.input(0).replace_source_output(back.output(0))
    with pytest.raises(GraphError, match=r"measures a tensor of shape \[\?,2,8\]"):
        cut_stage(model, 2, 3)


def test_stateful_tail_makes_logits_of_the_wanted_rows_only() -> None:
    whole, tail = Decoder(LAYERS).build(), Decoder(LAYERS).build()
    gather_output_rows(tail)
    feed = {
        "input_ids": np.arange(6)[None],
        "attention_mask": np.ones((1, 6), np.int64),
        "beam_idx": np.zeros(1, np.int32),
    }
    everything = next(iter(compiled(whole).infer(feed).values()))
    wanted = next(iter(compiled(tail).infer({**feed, "output_rows": np.array([5, 2], np.int32)}).values()))
    assert wanted.shape == (1, 2, VOCABULARY)
    assert np.abs(wanted - everything[:, [5, 2]]).max() <= 1e-6


def test_stage_without_logits_gets_no_output_rows() -> None:
    stage = cut_stage(Decoder(LAYERS).build(), 0, 1)
    gather_output_rows(stage)
    assert "output_rows" not in names(stage.inputs)


def test_head_of_several_products_is_refused() -> None:
    with pytest.raises(GraphError, match="no single matrix product makes the logits"):
        gather_output_rows(Decoder(oddity="two heads").build())


@pytest.mark.parametrize(
    ("oddity", "says"),
    [
        ("no attention op", "does not take paged attention .No ScaledDotProductAttention"),
        ("other state", "paged attention leaves ReadValue behind"),
    ],
)
def test_graph_that_does_not_take_paged_attention_is_refused(oddity: Oddity, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        make_paged(Decoder(LAYERS, oddity).build())
