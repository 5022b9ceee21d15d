"""PCs that are lost on their way into a fleet: whatever they were at, they come again and the model runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_parts import Lab
from lab_parts.agents import Agents, Sight

SECONDS = 180.0

PHASES = {"fetching": "fetching", "measuring": "measuring layers", "loading": "compiling"}
"""What a node that fails is doing, as its work is called."""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(2) as lab:
        yield lab


HOW = ("killed", "cut off", "suspended")
Losses = list[tuple[str, str]]
"""One after the other: what the node is doing, and how it is lost."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Two on one way in; with --exhaustive, each phase in each way, each on a way of its own."""
    every: list[Losses] = [[(phase, how)] for phase in PHASES for how in HOW]
    few: list[Losses] = [[("fetching", "killed"), ("loading", "suspended")]]
    chosen = every if metafunc.config.getoption("exhaustive") else few
    metafunc.parametrize("losses", chosen, ids=lambda losses: ", ".join(map("-".join, losses)))


def test_a_pc_is_lost_on_its_way_in_and_comes_again(lab: Lab, smollm2_package: Path, losses: Losses) -> None:
    agents = Agents(lab)
    head = agents.serve(smollm2_package, "--mode", "exact", "--stages", "2", "--no-replicas")
    token = agents.token()
    lab.set_rate(1, "100mbit" if losses[0][0] == "fetching" else "1gbit")
    node = agents.join(1, "--token-file", token)
    for phase, how in losses:
        doing = PHASES[phase]

        def at_work(sight: Sight, doing: str = doing) -> bool:
            return sight.work.get("pc1", "").startswith(doing)

        agents.wait_until(f"pc1 is {phase}", at_work, SECONDS, [head, node])
        if how == "killed":
            node.kill()
        elif how == "suspended":
            node.suspend()
        else:
            lab.cut(1)
        agents.wait_until("pc1 has left", lambda sight: sight.nodes == ["pc0"] and not sight.chains, SECONDS, [head])
        if how == "killed":
            node = agents.join(1)
        elif how == "suspended":
            node.resume()
        else:
            lab.heal(1)
        lab.set_rate(1, "1gbit")
    agents.wait_until("the model runs", lambda sight: len(sight.chains) == 1, SECONDS, [head, node])
    assert agents.ask("What is the capital of France?", 16)["text"]
