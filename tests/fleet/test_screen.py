"""The screen on a fleet of two PCs: a node is let in, serves, is lost in the middle of answers, and comes again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import SECONDS, ask
from lab_parts import Lab, Process
from lab_parts.agents import PROGRAM, Agents

KEEPER = Path(__file__).parents[1] / "tui" / "keeper.py"
NOTICED_SECONDS = 5.0
"""What is promised: so long after a node is killed the map shows it."""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(2) as lab:
        yield lab


def test_a_node_is_let_in_and_lost_in_mid_answer_and_comes_again(lab: Lab, smollm2_package: Path) -> None:
    agents = Agents(lab)
    head = agents.serve(smollm2_package, "--mode", "exact", "--stages", "2", "--no-replicas")
    agents.wait_for_nodes(["pc0"], SECONDS)
    node = agents.join(1)
    keeper = lab.hosts[0].start([sys.executable, KEEPER])
    answer = sight(keeper, "an answer")
    asked = ask(lab)
    killed = time.monotonic()
    node.kill()
    gone = sight(keeper, "pc1 is gone from the map")
    broken = sight(keeper, "the answer has broken off")["screen"]
    assert keeper.wait(SECONDS) == 0, keeper
    assert gone["at"] - killed < NOTICED_SECONDS
    assert broken.count("broke off") == 1 and "pc1" in broken
    begun = answer["screen"].split("copy")[-1].split()[:5]
    assert " ".join(begun) in " ".join(broken.split())  # what had come stays

    assert asked.wait(SECONDS) == 1
    assert asked.stderr.count("error:") == 1 and "pc1" in asked.stderr
    agents.wait_until("no chain is left", lambda sight: not sight.chains, SECONDS, [head])
    refused = lab.hosts[0].run([PROGRAM, "ask", "Hello"], timeout=SECONDS)
    assert refused.returncode == 1 and "2 stages" in refused.stderr
    node = agents.join(1)
    agents.wait_until("the model runs again", lambda sight: len(sight.chains) == 1, SECONDS, [head, node])
    assert agents.ask("What is the capital of France?", 16)["text"]


def sight(keeper: Process, what: str) -> dict[str, Any]:
    """What the keeper saw, when it has seen it."""
    keeper.wait_for(f'"saw": "{what}".*\n', SECONDS)
    for line in keeper.stdout.rpartition("\n")[0].splitlines():
        seen: dict[str, Any] = json.loads(line)
        if seen["saw"] == what:
            return seen
    raise AssertionError(what)
