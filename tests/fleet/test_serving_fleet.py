"""A model on the PCs of a network: PCs that come and go while people ask."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from lab_parts import Lab, Process
from lab_parts.agents import PROGRAM, Agents

SECONDS = 180.0
QUESTION = "Tell a long story about a lighthouse and the people who live there."
TOKENS = 300


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(2) as lab:
        yield lab


def ask(lab: Lab) -> Process:
    """Ask for a long answer, and see its first words."""
    asked = lab.hosts[0].start([PROGRAM, "ask", QUESTION, "--max-tokens", str(TOKENS)])
    asked.wait_for(r"\w+ \w+ \w+", SECONDS)
    return asked


def test_a_pc_that_joins_takes_part_and_breaks_no_answer(lab: Lab, smollm2_package: Path) -> None:
    agents = Agents(lab)
    head = agents.serve(smollm2_package, "--mode", "exact", "--users", "2")
    alone = agents.wait_until("the model runs", lambda sight: len(sight.chains) == 1, SECONDS, [head])
    assert alone.chains == [["pc0"]]
    asked = ask(lab)
    agents.lend_measurements(1)
    node = agents.join(1, "--token-file", agents.token())
    agents.wait_until("pc1 serves", lambda sight: any("pc1" in chain for chain in sight.chains), SECONDS, [head, node])
    assert asked.wait(SECONDS) == 0
    again = agents.ask(QUESTION, TOKENS)
    assert asked.stdout.strip() == again["text"].strip()


def test_an_answer_ends_in_one_clear_error_when_a_pc_is_lost_and_the_fleet_recovers(
    lab: Lab, smollm2_package: Path
) -> None:
    agents = Agents(lab)
    head = agents.serve(smollm2_package, "--mode", "exact", "--stages", "2", "--no-replicas")
    node = agents.join(1, "--token-file", agents.token())
    agents.wait_until("the model runs", lambda sight: len(sight.chains) == 1, SECONDS, [head, node])
    asked = ask(lab)
    node.kill()
    assert asked.wait(SECONDS) == 1
    assert asked.stderr.count("error:") == 1 and "pc1" in asked.stderr
    agents.wait_until("no chain is left", lambda sight: not sight.chains, SECONDS, [head])
    refused = lab.hosts[0].run([PROGRAM, "ask", "Hello"], timeout=SECONDS)
    assert refused.returncode == 1 and "2 stages" in refused.stderr
    node = agents.join(1)
    agents.wait_until("the model runs again", lambda sight: len(sight.chains) == 1, SECONDS, [head, node])
    assert agents.ask("What is the capital of France?", 16)["text"]


def test_other_pcs_reach_the_api_only_with_its_key(lab: Lab, smollm2_package: Path) -> None:
    agents = Agents(lab)
    head = agents.serve(smollm2_package, "--mode", "exact", "--host", "0.0.0.0")
    head.wait_for('"key_file"', SECONDS)
    code = f"import httpx; print(httpx.get('http://{lab.hosts[0].ipv4}:8114/v1/models', trust_env=False).status_code)"
    assert lab.hosts[1].run([sys.executable, "-c", code]).stdout.strip() == str(httpx.codes.UNAUTHORIZED)
