"""A previewed plan as text, tables and a small drawing. Names of nodes are text, never markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tui import amounts, layers
from tui.client.plan import LeftOut, Plan, PlannedChain, PlannedStage, Prediction, Preview
from tui.fleet.texts import fitted

_NARROWEST = 8
"""Cells of a stage in the drawing; where there is no room for all, it goes on in another row."""
_NAME_WIDTH = 24


def summary(preview: Preview) -> Text:
    """What the plan promises, against now."""
    prediction = preview.plan.prediction
    text = Text()
    text.append(f"{amounts.tokens_per_second(prediction.many_users)} tok/s", "bold")
    text.append(f" predicted for {_users(prediction.users)}, ")
    if preview.current is None:
        text.append("nothing is at work now")
    else:
        gain = amounts.change(prediction.many_users, preview.current)
        text.append(f"now {amounts.tokens_per_second(preview.current)}: ").append(gain, "bold")
    text.append(f"\none user {amounts.tokens_per_second(prediction.one_user)} tok/s")
    text.append(f", first token after {amounts.milliseconds(prediction.first_token_ms)}")
    if preview.is_current:
        text.append("\n✓ this plan is at work")
    return text


def details(preview: Preview) -> RenderableType:
    """Chains, nodes that are left out, what each node is worth, and nodes that are not measured."""
    names, plan = preview.nodes, preview.plan
    parts: list[RenderableType] = []
    for number, chain in enumerate(plan.chains, 1):
        title = f"chain {number}" if len(plan.chains) > 1 else "chain"
        parts.append(
            Text(f"{title}: {_users(chain.users)}, {amounts.count(chain.kv_tokens)} tokens of KV cache", "bold")
        )
        parts += [ChainDrawing(chain, names), _stages(chain, names)]
    if plan.left_out:
        parts.append(_left_out(plan.left_out, plan.prediction, names))
    if plan.without:
        parts.append(_without(plan, names))
    if preview.unmeasured:
        parts.append(
            Text("\nnot measured yet, so not planned with: ", "bold")
            + Text(", ").join(fitted(name, _NAME_WIDTH) for name in preview.unmeasured)
        )
    return Group(*parts)


class ChainDrawing:
    """The stages of a chain beside each other, as wide as they have layers.

    Args:
        chain: The chain.
        names: Names of the nodes by key.
    """

    def __init__(self, chain: PlannedChain, names: Mapping[str, str]) -> None:
        self._stages, self._names = chain.stages, names

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Three lines for each row of stages: names, bars, layers."""
        in_a_row = max(1, options.max_width // _NARROWEST)
        for first in range(0, len(self._stages), in_a_row):
            yield from self._row(first, self._stages[first : first + in_a_row], options.max_width)

    def _row(self, first: int, stages: Sequence[PlannedStage], width: int) -> list[Text]:
        names, bars, spans = Text(), Text(), Text()
        cells = shares([stage.end - stage.begin for stage in stages], width, _NARROWEST)
        for number, (stage, share) in enumerate(zip(stages, cells, strict=True), first):
            inner = max(share - 1, 1)
            for line, text in (
                (names, fitted(_name(stage.node, self._names), inner)),
                (bars, Text(("█" if number % 2 == 0 else "▒") * inner)),
                (spans, Text(_layers(stage)[:inner])),
            ):
                text.pad_right(share - text.cell_len)
                line.append_text(text)
        for line in (names, bars, spans):
            line.no_wrap = True
        return [names, bars, spans]


def shares(weights: Sequence[float], width: int, least: int) -> list[int]:
    """The width dealt by weights, at least `least` each where there is room for it; they add up to the width."""
    if least * len(weights) > width:
        least = 0
    spare, total = width - least * len(weights), max(sum(weights), 1)
    ends = [round(spare * part / total) for part in accumulate(weights)]
    return [least + end - start for start, end in zip([0, *ends], ends, strict=False)]


def _stages(chain: PlannedChain, names: Mapping[str, str]) -> Table:
    table = _table("node", "layers", "memory")
    for stage in chain.stages:
        table.add_row(
            fitted(_name(stage.node, names), _NAME_WIDTH),
            f"{_layers(stage)} ({layers.count(stage.end - stage.begin)})",
            amounts.size(stage.memory),
        )
    return table


def _left_out(left_out: Sequence[LeftOut], prediction: Prediction, names: Mapping[str, str]) -> RenderableType:
    table = _table("node", "why", "tok/s with it")
    for one in left_out:
        table.add_row(
            fitted(_name(one.node, names), _NAME_WIDTH), fitted(one.reason), _against(one.prediction_with, prediction)
        )
    return Group(Text("\nleft out", "bold"), table)


def _without(plan: Plan, names: Mapping[str, str]) -> RenderableType:
    table = _table("without", "tok/s")
    for key, prediction in plan.without.items():
        text = Text("does not fit") if prediction is None else _against(prediction, plan.prediction)
        table.add_row(fitted(_name(key, names), _NAME_WIDTH), text)
    return Group(Text("\nwhat each node is worth", "bold"), table)


def _against(prediction: Prediction | None, plan: Prediction) -> Text:
    if prediction is None:
        return Text(amounts.UNKNOWN)
    gain = amounts.change(prediction.many_users, plan.many_users)
    return Text(f"{amounts.tokens_per_second(prediction.many_users)} ({gain})")


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _layers(stage: PlannedStage) -> str:
    return "–".join(layers.ends(stage.begin, stage.end))


def _users(users: int) -> str:
    return f"{users} user" if users == 1 else f"{users} users"


def _name(key: str, names: Mapping[str, str]) -> str:
    return names.get(key) or key[:8]
