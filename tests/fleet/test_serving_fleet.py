"""A model on the PCs of a network, while people ask. How a PC is lost is in test_screen."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from asking import QUESTION, SECONDS, TOKENS, ask
from lab_parts import Lab
from lab_parts.agents import Agents


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(2) as lab:
        yield lab


def test_a_pc_that_joins_takes_part_and_breaks_no_answer(lab: Lab, smollm2_package: Path) -> None:
    agents = Agents(lab)
    # at so many users a second copy gains, however noisy the measurements are
    head = agents.serve(smollm2_package, "--mode", "exact", "--users", "16", "--context", "1024")
    alone = agents.wait_until("the model runs", lambda sight: len(sight.chains) == 1, SECONDS, [head])
    assert alone.chains == [["pc0"]]
    asked = ask(lab)
    agents.lend_measurements(1)
    node = agents.join(1, "--token-file", agents.token())
    agents.wait_until("pc1 serves", lambda sight: any("pc1" in chain for chain in sight.chains), SECONDS, [head, node])
    assert asked.wait(SECONDS) == 0
    again = agents.ask(QUESTION, TOKENS)
    assert asked.stdout.strip() == again["text"].strip()


def test_other_pcs_reach_the_api_only_with_its_key(lab: Lab, smollm2_package: Path) -> None:
    agents = Agents(lab)
    # there are too few nodes for a plan: the model is not there, the API is
    agents.serve(smollm2_package, "--min-nodes", "9", "--host", "0.0.0.0")
    code = f"""
import httpx
with httpx.Client(transport=httpx.HTTPTransport(retries=8), trust_env=False) as other:
    print(other.get("http://{lab.hosts[0].ipv4}:8114/v1/models", timeout=60).status_code)
"""
    asked = lab.hosts[1].run([sys.executable, "-c", code], timeout=SECONDS)
    assert asked.stdout.strip() == str(httpx.codes.UNAUTHORIZED)
