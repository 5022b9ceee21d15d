"""Stand-ins for a head, and names as only an enemy gives them."""

from __future__ import annotations

import asyncio
from typing import Any

from textual.app import App
from textual.widgets import Static

from tui.client.errors import RefusedError
from tui.client.head_client import HeadClient
from tui.client.plan import (
    Check,
    LeftOut,
    NodeDetail,
    Plan,
    PlannedChain,
    PlannedStage,
    Prediction,
    Preview,
    Wish,
)
from tui.client.state import Condition, Device, Hardware, LinkState, Node, Versions

MARKUP = "[bold red]pc[/]"
BROKEN_MARKUP = "[/nonsense][@click=app.quit]pc"
ESCAPES = "pc\x1b[31m\x1b]0;owned\x07\x9b2J\n\rnext"
WIDE = "机器" * 40
LONG = "x" * 5000
DIRECTIONS = "pc\u202egnp.exe"
NASTY = (MARKUP, BROKEN_MARKUP, ESCAPES, WIDE, LONG, DIRECTIONS, "e\u0301" * 300, "")


def prediction(many_users: float) -> Prediction:
    return Prediction(one_user=many_users / 2, users=4, many_users=many_users, first_token_ms=210)


def preview(*, wish: Wish | None = None, current: float | None = 25.0, tokens: float = 30.0, **more: Any) -> Preview:
    """A plan over two nodes, one of them with an evil name; a third is left out, a fourth not measured."""
    stages = (
        PlannedStage(node="a" * 40, first_layer=0, end_layer=20, memory=3 * 10**9),
        PlannedStage(node="b" * 40, first_layer=20, end_layer=30, memory=10**9),
    )
    chain = PlannedChain(stages=stages, users=4, kv_tokens=16384, prediction=prediction(tokens))
    plan = Plan(
        chains=(chain,),
        prediction=prediction(tokens),
        left_out=(LeftOut(node="c" * 40, reason=f"slow {MARKUP}", prediction_with=prediction(tokens * 0.8)),),
        without={"a" * 40: None, "b" * 40: prediction(tokens / 2)},
    )
    names = {"a" * 40: "pc-1", "b" * 40: MARKUP, "c" * 40: "pc-3"}
    return Preview(wish=wish or Wish(), nodes=names, unmeasured=(MARKUP,), plan=plan, current=current, **more)


def node(name: str = "pc-2", key: str = "b" * 40, **more: Any) -> Node:
    """A node with a bit of everything."""
    return Node(
        name=name,
        key=key,
        address="192.168.1.12:5000",
        addresses=("192.168.1.12:5000", "[fd00::12]:5000"),
        since=1_700_000_000,
        versions=Versions(edge_agent="0.1.0", protocol=3, openvino="2026.4", python="3.12.1", system="Linux 6.8"),
        hardware=Hardware(
            processor="Core Ultra 7",
            cores=16,
            memory=32 * 10**9,
            devices=(Device(name="GPU", full_name="Arc [140V]", memory=16 * 10**9, driver="32.0.1"),),
            is_laptop=True,
        ),
        condition=Condition(memory_free=20 * 10**9, memory_allowed=16 * 10**9, disk_free=10**11, battery=0.8),
        links={"a" * 40: LinkState(latency_ms=0.4, bytes_per_second=118e6)},
        **more,
    )


def detail(of: Node | None = None, **more: Any) -> NodeDetail:
    """What a node says that can be asked."""
    given: dict[str, Any] = {
        "milliseconds": {"rows": (1, 8), "layer": (0.5, 0.9), "head": (2.0, 2.5)},
        "log": tuple(f"line {number}" for number in range(100)),
        "checks": (
            Check(topic="driver", status="ok", what="32.0.1"),
            Check(topic="memory", status="warning", what="little is free", next_step="Close something."),
            Check(topic="network", status="fault", what=f"no way to {MARKUP}"),
        ),
    }
    return NodeDetail(node=of or node(), **{**given, **more})


class StandInClient(HeadClient):
    """Answers what it was given, when it may."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.applied: list[dict[str, Any]] = []
        self.forgotten: list[str] = []
        self.asked_nodes: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.refusal: str | None = None
        self.preview = preview()
        self.detail = detail()

    async def plan(self, **changes: Any) -> Preview:
        self.asked.append(changes)
        await self._wait()
        wished = changes | ({"stages": None} if changes.get("stages") == 0 else {})
        return self.preview.model_copy(update={"wish": self.preview.wish.model_copy(update=wished)})

    async def apply(self, **changes: Any) -> None:
        await self._wait()
        self.applied.append(changes)

    async def forget(self, node: str) -> str:
        await self._wait()
        self.forgotten.append(node)
        return self.detail.node.name

    async def node(self, name: str) -> NodeDetail:
        self.asked_nodes.append(name)
        await self._wait()
        return self.detail

    async def _wait(self) -> None:
        await self.may_answer.wait()
        if self.refusal is not None:
            raise RefusedError(self.refusal)


def shown(app: App[Any]) -> str:
    """The screen as text."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


def text_of(app: App[Any], selector: str) -> str:
    """What a Static holds, drawn as wide as needed."""
    from rich.console import Console

    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(app.screen.query_one(selector, Static).content, markup=False)
    return captured.get()
