from __future__ import annotations

import io

from rich.console import Console

from agent.cli.plan_tables import plan_tables
from pipeline.planning.plan import ChainPlan, LeftOut, Plan, Prediction, StagePlan


def shown(plan: Plan, names: dict[str, str]) -> str:
    console = Console(file=io.StringIO(), width=160)
    for table in plan_tables(plan, names):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def prediction(many: float, one: float, users: int = 4) -> Prediction:
    return Prediction(one_user=one, users=users, many_users=many, first_token_ms=345.0)


PLAN = Plan(
    chains=(
        ChainPlan(
            stages=(
                StagePlan(node="k1", first_layer=0, end_layer=12, memory=2_500_000_000),
                StagePlan(node="k2", first_layer=12, end_layer=30, engine="llamacpp", memory=800_000_000),
            ),
            users=4,
            kv_tokens=16384,
            prediction=prediction(44.25, 12.5),
        ),
    ),
    prediction=prediction(44.25, 12.5),
    left_out=(LeftOut(node="k3", reason="would make it 31.0 tok/s instead of 44.2: its [bold]layers"),),
    without={"k1": None, "k2": prediction(20.0, 9.0)},
)


def test_everything_is_shown() -> None:
    text = shown(PLAN, {"k1": "desk", "k2": "laptop", "k3": "old"})
    for line in (
        ("desk", "0-11", "openvino-paged", "2.50 GB", "4", "44.2 tok/s", "12.5 tok/s"),
        ("laptop", "12-29", "llamacpp", "800 MB"),
        ("this plan", "44.2 tok/s", "12.5 tok/s", "0.34 s"),
        ("without desk", "does not fit"),
        ("without laptop", "20.0 tok/s", "9.0 tok/s"),
        ("old", "would make it 31.0 tok/s instead of 44.2: its [bold]layers"),
    ):
        assert any(all(part in row for part in line) for row in text.splitlines()), line


def test_a_divided_layer_is_a_half_on_both_nodes() -> None:
    (chain,) = PLAN.chains
    desk, laptop = chain.stages
    stages = (
        desk.model_copy(update={"ends_after_attention": True}),
        laptop.model_copy(update={"first_layer": 11, "begins_after_attention": True}),
    )
    divided = PLAN.model_copy(update={"chains": (chain.model_copy(update={"stages": stages}),)})
    rows = shown(divided, {"k1": "desk", "k2": "laptop"}).splitlines()
    assert any("desk" in row and "0-11½" in row for row in rows)
    assert any("laptop" in row and "11½-29" in row for row in rows)


def test_names_are_text_whatever_is_in_them() -> None:
    text = shown(PLAN, {"k1": "[red]x[/] \x1b[2J", "k2": "[/]"})
    assert "[red]x[/] ?[2J" in text and "\x1b" not in text
    assert "[/]" in text
    assert "k3" in text


def test_what_is_at_work_now_is_shown_beside() -> None:
    console = Console(file=io.StringIO(), width=160)
    for table in plan_tables(PLAN, {}, 31.25):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    rows = console.file.getvalue().splitlines()
    (place,) = [number for number, row in enumerate(rows) if "at work now" in row]
    assert "31.2 tok/s" in rows[place] and "this plan" in rows[place - 1]
    assert "at work now" not in shown(PLAN, {})
