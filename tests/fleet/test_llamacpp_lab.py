"""A model on the PCs of a network of which some run llama.cpp: one is lost in the middle of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import QUESTION, SECONDS, ask
from lab_parts import Lab
from lab_parts.agents import Agents


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(3) as lab:
        yield lab


def engines(told: dict[str, Any]) -> dict[str, str]:
    """What the stages at work run on, by the names of their nodes."""
    names = {node["key"]: node["name"] for node in told["nodes"]}
    return {names[stage["node"]]: stage["engine"] for chain in told["chains"] for stage in chain["stages"]}


def test_without_a_pc_that_was_lost_the_others_go_on(lab: Lab, smollm2_llamacpp_package: Path) -> None:
    agents = Agents(lab)
    options = ("--mode", "exact", "--stages", "2", "--no-replicas", "--min-nodes", "3", "--engine", "llamacpp")
    head = agents.serve(smollm2_llamacpp_package, *options)
    token = agents.token()
    nodes = {
        "pc1": agents.join(1, "--token-file", token, "--engine", "llamacpp"),
        "pc2": agents.join(2, "--token-file", token, "--engine", "openvino"),
    }
    processes = [head, *nodes.values()]
    agents.wait_until("the model runs", lambda sight: len(sight.chains) == 1, SECONDS, processes)
    at_work = engines(agents.status())
    own = {"pc0": "llamacpp", "pc1": "llamacpp", "pc2": "openvino-paged"}
    assert len(at_work) == 2 and at_work.items() <= own.items()

    asked = ask(lab)
    lost = next(name for name in at_work if name != "pc0")
    nodes[lost].kill()
    left = sorted({"pc0", "pc1", "pc2"} - {lost})
    agents.wait_until("two go on", lambda sight: [sorted(chain) for chain in sight.chains] == [left], SECONDS, [head])
    assert asked.wait(SECONDS) == 1
    assert asked.stderr.count("error:") == 1 and lost in asked.stderr
    now = engines(agents.status())
    assert now == {name: own[name] for name in left}
    assert agents.ask(QUESTION, 16)["text"]
