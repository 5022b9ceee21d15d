"""Models, nodes and links for the planner's tests."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from pipeline.planning.plan import HEAD, Link, ModelSize, NodeOffer
from pipeline.planning.room import Reserve
from shards.profile import CostProfile

ROWS = (1, 2, 4, 8)
NOTHING = Reserve(0.0, 0)
"""No reserve, so that bytes can be counted by hand."""


def model(
    layers: int | Sequence[int] = 10, *, embedding: int = 5, head: int = 5, shared: int = 1, kv_token: int = 0
) -> ModelSize:
    """A model of layers of 10 bytes each, or of these sizes."""
    return ModelSize(
        layers=(10,) * layers if isinstance(layers, int) else tuple(layers),
        embedding=embedding,
        head=head,
        shared=shared,
        kv_token=kv_token,
        hidden_size=64,
        vocabulary=1000,
    )


def node(
    name: str,
    layer: float | Sequence[float] = 1.0,
    memory: int = 10**9,
    *,
    fixed: float | Sequence[float] = 0.1,
    embed: float | Sequence[float] = 0.05,
    head: float | Sequence[float] = 1.0,
    by_row: float = 0.1,
    rows: tuple[int, ...] = ROWS,
) -> NodeOffer:
    """A node: milliseconds of one row with the share that each further row adds, or of each of `rows`."""

    def curve(time: float | Sequence[float]) -> tuple[float, ...]:
        if isinstance(time, Sequence):
            return tuple(time)
        return tuple(time * (1 + by_row * (count - 1)) for count in rows)

    costs = CostProfile(
        device="CPU",
        engine="openvino-paged",
        mode="fast",
        rows=rows,
        fixed=curve(fixed),
        embed=curve(embed),
        layer=curve(layer),
        head=curve(head),
    )
    return NodeOffer(id=name, name=f"{name}'s PC", memory=memory, costs=costs)


def divided(offer: NodeOffer, attention: float | None) -> NodeOffer:
    """The node with the milliseconds of an attention for one row, a part of a layer; None: it knows nothing of that."""
    share = None if attention is None else attention / offer.costs.layer[0]
    times = () if share is None else tuple(share * time for time in offer.costs.layer)
    return offer.model_copy(update={"costs": offer.costs.model_copy(update={"attention": times})})


def network(
    names: Sequence[str], latency_ms: float = 0.3, bytes_per_second: float = 125e6, **slow: float
) -> list[Link]:
    """Links between all of them and the head; `slow` has the latency of all links of some nodes."""
    ends = [*names, HEAD]
    return [
        Link(
            source=source,
            target=target,
            latency_ms=max(slow.get(source, latency_ms), slow.get(target, latency_ms)),
            bytes_per_second=bytes_per_second,
        )
        for source in ends
        for target in ends
        if source != target
    ]


def office(nodes: int, memory: float, seed: int) -> tuple[ModelSize, list[NodeOffer], list[Link]]:
    """A mixed lot of PCs for a model of 126 layers; each offers about `memory` times the model's size."""
    chance, layer = Random(seed), 400_000_000
    size = ModelSize(
        layers=(layer,) * 126,
        embedding=10**9,
        head=10**9,
        shared=10**6,
        kv_token=4096,
        hidden_size=8192,
        vocabulary=128_000,
    )
    offers = [
        node(
            f"pc-{number:02}",
            chance.choice([0.5, 1.0, 1.0, 2.0, 8.0]) * chance.uniform(0.8, 1.2),
            int(memory * 126 * layer * chance.uniform(0.5, 1.5)),
            head=2.0,
            by_row=chance.uniform(0.02, 0.2),
        )
        for number in range(nodes)
    ]
    ends = [offer.id for offer in offers] + [HEAD]
    links = [
        Link(source=a, target=b, latency_ms=chance.choice([0.2, 0.5, 3.0]), bytes_per_second=chance.choice([1e8, 3e7]))
        for a in ends
        for b in ends
        if a != b
    ]
    return size, offers, links
