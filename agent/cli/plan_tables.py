"""A plan as tables for people. Names come from other PCs: they are text, never markup."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from agent.cli.tables import plain, titled
from pipeline.planning.amounts import amount
from pipeline.planning.plan import Plan, Prediction
from shards.edges import layer_words


def plan_tables(plan: Plan, names: Mapping[str, str], current: float | None = None) -> list[Table]:
    """What each node would carry, what that gives, and what leaving a node out or in would change.

    Args:
        plan: The plan.
        names: Of nodes, by their ids; an id without a name is shown as it is.
        current: Tokens a second of all users that is predicted of what is at work now, if something is.
    """
    tables = [_chains(plan, names), _predictions(plan, names, current)]
    return [*tables, _left_out(plan, names)] if plan.left_out else tables


def _chains(plan: Plan, names: Mapping[str, str]) -> Table:
    copies = len(plan.chains)
    table = titled(
        "plan" if copies == 1 else f"plan, {copies} copies of the model", "copy", "node", "layers", "engine", "memory"
    )
    for column in ("users", "all of them", "one alone"):
        table.add_column(column, justify="right")
    for number, chain in enumerate(plan.chains, 1):
        for stage in chain.stages:
            first, last = stage is chain.stages[0], stage is chain.stages[-1]
            speeds = (str(chain.users), *_speeds(chain.prediction)) if first else ()
            table.add_row(
                str(number) if first else "",
                _name(stage.node, names),
                layer_words(stage),
                stage.engine,
                amount(stage.memory),
                *speeds,
                end_section=last,
            )
    return table


def _predictions(plan: Plan, names: Mapping[str, str], current: float | None) -> Table:
    table = titled("predicted", "")
    users = plan.prediction.users
    for column in (f"{users} users" if users > 1 else "a user", "one alone", "first token"):
        table.add_column(column, justify="right")
    table.add_row("this plan", *_figures(plan.prediction), end_section=current is None)
    if current is not None:
        table.add_row("at work now", f"{current:.1f} tok/s", "", "", end_section=True)
    for node, prediction in plan.without.items():
        label = Text("without ").append_text(_name(node, names))
        table.add_row(label, *(_figures(prediction) if prediction else ("does not fit", "", "")))
    return table


def _left_out(plan: Plan, names: Mapping[str, str]) -> Table:
    table = titled("left out", "node", "why")
    for left_out in plan.left_out:
        table.add_row(_name(left_out.node, names), plain(left_out.reason))
    return table


def _figures(prediction: Prediction) -> tuple[str, str, str]:
    return *_speeds(prediction), f"{prediction.first_token_ms / 1e3:.2f} s"


def _speeds(prediction: Prediction) -> tuple[str, str]:
    return f"{prediction.many_users:.1f} tok/s", f"{prediction.one_user:.1f} tok/s"


def _name(node: str, names: Mapping[str, str]) -> Text:
    return plain(names.get(node, node))
