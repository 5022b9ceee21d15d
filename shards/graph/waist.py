"""Finding the decoder layers of a graph by the shape of its data flow.

A *waist* is a tensor through which everything computed from the tokens must pass on its way to the logits: the residual
stream between attention and MLP, and between two layers. Shape arithmetic and side inputs (mask, positions, beam
indices, KV states) carry no token data and do not count. The last waist before the next attention ends a layer; an
earlier one with a matrix product still to come divides it in two.
"""

from __future__ import annotations

from dataclasses import dataclass

import openvino as ov

from shards.graph.nodes import behind, readers, refuse, sources

TOKEN_INPUTS = frozenset({"input_ids", "inputs_embeds"})
SIDE_INPUTS = frozenset({"attention_mask", "position_ids", "beam_idx"})
ATTENTION = "ScaledDotProductAttention"


@dataclass(frozen=True)
class Layers:
    """Where the decoder layers of a graph are."""

    token: ov.Node
    """The Parameter the tokens (or hidden states) come in by."""
    result: ov.Node
    """The Result the logits (or hidden states) leave by."""
    edges: tuple[ov.Node, ...]
    """edges[k] is the node whose output 0 is the hidden state after k layers; depth + 1 of them."""
    middles: tuple[ov.Node | None, ...]
    """middles[k] is the node whose output 0 is the hidden state within layer k, behind its attention; None: there is
    no such state, as where attention and MLP work side by side."""
    attentions: tuple[ov.Node, ...]
    """The attention of each layer."""
    caches: tuple[tuple[ov.Node, ov.Node], ...]
    """The key and the value state (ReadValue) of each layer."""
    hidden_size: int

    @property
    def depth(self) -> int:
        """Number of decoder layers."""
        return len(self.attentions)


def find_layers(model: ov.Model) -> Layers:
    """Find the decoder layers of a stateful graph, whole or already cut.

    Raises:
        GraphError: The graph is not a stateful decoder with one attention between waists; says what it lacks.
    """
    token, result = _ends(model)
    path = main_path(model, token, result)
    attentions = [node for node in path if node.get_type_name() == ATTENTION]
    states = {node.get_name(): node for node in model.get_ops() if node.get_type_name() == "ReadValue"}
    if not attentions:
        raise refuse(
            model,
            "the graph has no ScaledDotProductAttention operation",
            "Export it with optimum-intel or openvino_genai, which keep attention in one operation.",
        )
    if not states:
        raise refuse(
            model,
            "the graph is stateless: its KV cache is not held in states",
            "Export it with stateful=True.",
        )
    candidates = _candidates(path)
    edges, hidden_size = _edges(model, candidates, len(attentions))
    measures = {node.get_name() for node in model.get_ops() if node.get_type_name() == "ShapeOf"}
    stops = measures | states.keys() | {edge.get_name() for edge in edges}
    caches = tuple(_caches(model, node, k, states, stops) for k, node in enumerate(attentions))
    owned = {node.get_name() for pair in caches for node in pair}
    if len(owned) != 2 * len(caches):
        raise refuse(model, "a KV state serves more than one key or value: each attention needs two of its own")
    others = [_variable(node) for name, node in states.items() if name not in owned]
    if others:
        raise refuse(model, f"the graph has states that are not the KV cache of an attention: {_some(others)}")
    middles = _middles(path, candidates, edges, hidden_size)
    return Layers(token, result, edges, middles, tuple(attentions), caches, hidden_size)


def main_path(model: ov.Model, token: ov.Node, result: ov.Node) -> list[ov.Node]:
    """The operations that carry token data from the token input to the result, in execution order."""
    order = model.get_ordered_ops()
    ahead = {token.get_name()}
    for node in order:
        if node.get_type_name() not in ("ShapeOf", "ReadValue") and any(s.get_name() in ahead for s in sources(node)):
            ahead.add(node.get_name())
    needed = behind([result], (n.get_name() for n in order if n.get_type_name() == "ShapeOf"))
    return [node for node in order if node.get_name() in ahead and node.get_name() in needed]


def token_input(model: ov.Model) -> ov.Node:
    """The Parameter that token ids or hidden states come in by.

    Raises:
        GraphError: There is none, or more than one.
    """
    found = [parameter for parameter in model.get_parameters() if parameter.output(0).names & TOKEN_INPUTS]
    if len(found) != 1:
        names = sorted(name for port in model.inputs for name in port.names)
        raise refuse(
            model, f"the graph needs one token input (input_ids or inputs_embeds), but its inputs are {_some(names)}"
        )
    return found[0]


def _ends(model: ov.Model) -> tuple[ov.Node, ov.Node]:
    token = token_input(model)
    names = {name for port in model.inputs for name in port.names}
    past = sorted(name for name in names if name.startswith("past_key_values"))
    if past:
        raise refuse(
            model,
            f"the graph is stateless: its KV cache comes in by inputs ({_some(past)})",
            "Export it with stateful=True.",
        )
    foreign = [
        p.get_friendly_name() for p in model.get_parameters() if not p.output(0).names & (TOKEN_INPUTS | SIDE_INPUTS)
    ]
    if foreign:
        raise refuse(model, f"the graph has inputs besides tokens, mask and positions: {_some(foreign)}")
    results = model.get_results()
    if len(results) != 1:
        outputs = [r.get_friendly_name() for r in results]
        raise refuse(model, f"the graph needs one output, but has {len(outputs)}: {_some(outputs)}")
    return token, results[0]


def waists(path: list[ov.Node]) -> list[tuple[int, ov.Node]]:
    """(attentions passed, node) of each tensor that all token data flows through, in order."""
    on_path = {node.get_name() for node in path}
    waiting: dict[str, int] = {}  # tensors still to be read, and by how many
    found: list[tuple[int, ov.Node]] = []
    attentions = 0
    for node in path:
        for source in sources(node):
            name = source.get_name()
            if name in waiting:
                waiting[name] -= 1
                if not waiting[name]:
                    del waiting[name]
        name = node.get_name()
        uses = sum(reader.get_name() in on_path for reader in readers(node))
        if uses:
            waiting[name] = uses
        attentions += node.get_type_name() == ATTENTION
        if len(waiting) == 1 and name in waiting:
            found.append((attentions, node))
    return found


def _candidates(path: list[ov.Node]) -> dict[int, list[tuple[ov.Node, int]]]:
    """The waists that may be a hidden state, with their width, by the number of attentions passed."""
    candidates: dict[int, list[tuple[ov.Node, int]]] = {}
    for level, node in waists(path):
        shape = node.output(0).get_partial_shape()
        if node.get_output_size() == 1 and shape.rank.is_static and len(shape) == 3 and shape[2].is_static:
            candidates.setdefault(level, []).append((node, shape[2].get_length()))
    return candidates


def _edges(
    model: ov.Model, candidates: dict[int, list[tuple[ov.Node, int]]], depth: int
) -> tuple[tuple[ov.Node, ...], int]:
    """The last waist of each level that has the residual stream's width."""
    missing = [level for level in range(depth + 1) if level not in candidates]
    if missing:
        raise refuse(
            model,
            f"no single tensor carries everything after layer {missing[0]} of {depth}: later layers read more than "
            "the hidden state (a KV cache shared across layers, or inputs of their own)",
        )
    edges = [candidates[level][-1] for level in range(depth)]
    width = edges[0][1]
    # the last layer is followed by the final norm and the head: its own end is the last sum of that width
    tail = [pair for pair in candidates[depth] if pair[1] == width]
    sums = [pair for pair in tail if pair[0].get_type_name() == "Add"]
    if not tail or any(size != width for _, size in edges):
        raise refuse(model, f"the hidden state changes its width between layers: {[size for _, size in edges]}")
    edges.append((sums or tail)[-1])
    for level, (node, _) in enumerate(edges):
        dtype = node.output(0).get_element_type()
        if dtype != ov.Type.f32:
            raise refuse(model, f"the hidden state after layer {level} is {dtype.get_type_name()}, not f32")
    return tuple(node for node, _ in edges), width


def _middles(
    path: list[ov.Node], candidates: dict[int, list[tuple[ov.Node, int]]], edges: tuple[ov.Node, ...], width: int
) -> tuple[ov.Node | None, ...]:
    """The first waist behind each attention that is as good as an edge, with a matrix product before the layer ends."""
    place = {node.get_name(): index for index, node in enumerate(path)}
    products = [index for index, node in enumerate(path) if node.get_type_name() == "MatMul"]
    middles: list[ov.Node | None] = []
    for level, edge in enumerate(edges[1:], 1):
        first = next(node for node, size in candidates[level] if size == width)
        rest = range(place[first.get_name()] + 1, place[edge.get_name()])
        divides = first.output(0).get_element_type() == ov.Type.f32 and any(index in rest for index in products)
        middles.append(first if divides else None)
    return tuple(middles)


def _caches(
    model: ov.Model, attention: ov.Node, layer: int, states: dict[str, ov.Node], stops: set[str]
) -> tuple[ov.Node, ov.Node]:
    """The states that the key and the value of an attention come from."""
    found = []
    for port, what in ((1, "key"), (2, "value")):
        own = behind([attention.input_value(port).get_node()], stops).keys() & states.keys()
        if len(own) != 1:
            raise refuse(model, f"the {what} of layer {layer} comes from {len(own)} states instead of one")
        found.append(states[own.pop()])
    return found[0], found[1]


def _variable(state: ov.Node) -> str:
    return str(state.get_attributes()["variable_id"])


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
