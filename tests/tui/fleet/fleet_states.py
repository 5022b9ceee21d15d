"""States of fleets, as a head would say them."""

from __future__ import annotations

from typing import Any

from tui.client.history import History
from tui.client.state import (
    Chain,
    ChainTimes,
    Condition,
    Fleet,
    FleetName,
    LinkState,
    Model,
    Node,
    PendingNode,
    Request,
    Scheduler,
    Stage,
    StageTimes,
    Step,
    Work,
)

MODEL = Model(name="SmolLM2", layers=30, context_length=8192)


def key(number: int) -> str:
    return f"{number:02}" * 20


def node(number: int, **more: Any) -> Node:
    """Named pc-1, pc-2, ...; number 1 is the head's."""
    condition = Condition(
        memory_free=6 * 10**9,
        memory_allowed=8 * 10**9,
        battery=0.8 if number % 2 else None,
        on_mains=False,
        temperature=60.0 + number,
        load=0.3,
    )
    links = {key(other): LinkState(latency_ms=0.4, bytes_per_second=112e6) for other in range(1, number)}
    facts: dict[str, Any] = {
        "name": f"pc-{number}",
        "key": key(number),
        "is_head": number == 1,
        "device": "GPU",
        "memory_planned": 5 * 10**9,
        "condition": condition,
        "links": links,
    }
    return Node(**(facts | more))


def chain(nodes: list[int], *, steps: int = 0, requests: int = 0, number: int = 0, **more: Any) -> Chain:
    """Equal stages on nodes; 1 ms of computing each, 0.5 ms on each link."""
    share = MODEL.layers // max(len(nodes), 1) or 1
    stages = tuple(
        Stage(
            layers=(index * share, (index + 1) * share),
            device="GPU",
            node=key(at),
            microseconds=StageTimes(compute=1000.0),
            use=0.42,
            sent_bytes=1000,
        )
        for index, at in enumerate(nodes)
    )
    facts: dict[str, Any] = {
        "id": number,
        "stages": stages,
        "microseconds": ChainTimes(wire=500.0),
        "traversal_ms": 1.5 * len(nodes),
        "scheduler": Scheduler(running=requests, waiting=1, in_flight=steps, kv_total=100, kv_used=40),
        "requests": tuple(
            Request(id=f"chatcmpl-{index:08}", client="somebody", state="decode", tokens_per_second=10.0)
            for index in range(requests)
        ),
        "steps": tuple(
            Step(number=index, rows=1, sequences=1, age_ms=1.5 * len(nodes) * (index + 0.5) / steps)
            for index in reversed(range(steps))
        ),
    }
    return Chain(**(facts | more))


def fleet(*, chains: tuple[Chain, ...], nodes: tuple[Node, ...], **more: Any) -> Fleet:
    facts: dict[str, Any] = {"model": MODEL, "fleet": FleetName(name="home")}
    return Fleet(chains=chains, nodes=nodes, **(facts | more))


def simple(count: int = 3, *, steps: int = 2, requests: int = 2, **more: Any) -> Fleet:
    """A chain over `count` nodes."""
    numbers = list(range(1, count + 1))
    return fleet(
        chains=(chain(numbers, steps=steps, requests=requests),), nodes=tuple(node(each) for each in numbers), **more
    )


def mixed() -> Fleet:
    """Two chains, nodes that work, are idle or left out, one that has gone, and one that waits."""
    return fleet(
        chains=(chain([1, 2], steps=3, requests=1), chain([3, 9], number=1)),
        nodes=(
            node(1),
            node(2, work=Work(what="fetching", done=42, total=100)),
            node(3, work=Work(what="compiling")),
            node(4),
            node(5, problem="no memory is left for a layer"),
        ),
        pending=(PendingNode(code="AB-CD", name="pc-6", address="192.168.1.6"),),
    )


def local(stages: int = 2) -> Fleet:
    """One PC, no fleet."""
    made = chain([1] * stages, steps=1, requests=1)
    here = tuple(stage.model_copy(update={"node": "127.0.0.1"}) for stage in made.stages)
    return Fleet(model=MODEL, chains=(made.model_copy(update={"stages": here}),))


def history_of(state: Fleet, samples: int = 60) -> History:
    """As if it had been so for a while."""
    history = History()
    for index in range(samples):
        history.add(state, index / 2)
    return history
