"""Layers are found, and graphs that have none are refused by name."""

from __future__ import annotations

import pytest
from decoder import HIDDEN, Decoder, Oddity

from shards.errors import GraphError
from shards.graph import cut_stage, depth, find_layers


def test_layers_have_edges_and_caches_in_order() -> None:
    layers = find_layers(Decoder(layers=3).build())
    assert (layers.depth, layers.hidden_size, len(layers.edges)) == (3, HIDDEN, 4)
    names = [[state.get_attributes()["variable_id"] for state in pair] for pair in layers.caches]
    assert names == [[f"{k}.key", f"{k}.value"] for k in range(3)]


def test_last_edge_is_before_the_head() -> None:
    layers = find_layers(Decoder(layers=2).build())
    assert layers.edges[-1].output(0).get_partial_shape()[2] == HIDDEN


def test_layers_have_a_middle_behind_their_attention() -> None:
    layers = find_layers(Decoder(layers=3).build())
    assert [node is not None and node.get_type_name() for node in layers.middles] == ["Add"] * 3
    assert len({node.get_name() for node in (*layers.edges, *layers.middles) if node}) == 7


@pytest.mark.parametrize("oddity", ["side by side", "nothing behind attention"])
def test_layers_with_nothing_to_divide_have_none(oddity: Oddity) -> None:
    assert find_layers(Decoder(layers=2, oddity=oddity).build()).middles == (None, None)
    with pytest.raises(GraphError, match="no single tensor carries everything behind the attention of layer 1"):
        cut_stage(Decoder(layers=2, oddity=oddity).build(), 0, 1.5)


@pytest.mark.parametrize(
    ("oddity", "says"),
    [
        ("shared cache", "no single tensor carries everything after layer 1"),
        ("per-layer input", "no single tensor carries everything after layer 0"),
        ("extra input", "inputs besides tokens, mask and positions: image_0, image_1, image_2"),
        ("stateless", r"stateless: .*past_key_values\.0\.key"),
        ("no attention op", "no ScaledDotProductAttention"),
        ("other state", r"states that are not the KV cache of an attention: 0\.sum, 1\.sum, 2\.sum"),
        ("one state", "a KV state serves more than one key or value"),
        ("two outputs", "needs one output, but has 2: logits, scores"),
        ("no tokens", "needs one token input .* but its inputs are attention_mask, beam_idx, ids"),
        ("half precision", "hidden state after layer 0 is f16, not f32"),
    ],
)
def test_graph_that_cannot_be_cut_is_refused(oddity: Oddity, says: str) -> None:
    model = Decoder(oddity=oddity).build()
    with pytest.raises(GraphError, match=says) as caught:
        depth(model)
    assert caught.value.where == "tiny"
    assert caught.value.hint


@pytest.mark.parametrize(("first", "end"), [(0, 4), (2, 2), (2, 1), (-1, 2), (3, 4), (0, 0.5), (1.5, 2)])
def test_layers_that_are_not_there_are_refused(first: float, end: float) -> None:
    with pytest.raises(GraphError, match=f"layers {first} to {end} .* layers 0 to 3"):
        cut_stage(Decoder(layers=3).build(), first, end)
