"""Agents on PCs of a network: they find each other, are let in and shut out, leave and come back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from eventually import eventually
from lab_parts import Lab, LabError, Process
from lab_parts.agents import Agents
from lab_parts.check import FleetCheck

from shards.progress import silent

NO_MODEL = ("--min-nodes", "9")
"""Too few for a plan: the fleet is there, the model is not."""
SECONDS = 60.0


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(3) as lab:
        yield lab


def said(node: Process) -> dict[str, Any]:
    """The last state that `join --json` has printed."""
    lines = node.stdout.rpartition("\n")[0].splitlines()
    return json.loads(lines[-1]) if lines else {}


def test_what_was_promised(smollm2_package: Path) -> None:
    with Lab(3) as lab:
        report = FleetCheck(lab, smollm2_package, silent).run(2)
    missed = [target for target in report.targets if not target.ok and target.wanted == "true"]
    assert not missed
    assert len(report.targets) == 6
    assert len(report.runs) == 2


def test_a_node_is_let_in_by_its_code_and_shut_out_at_once(lab: Lab, smollm2_package: Path) -> None:
    agents = Agents(lab)
    head = agents.serve(smollm2_package, *NO_MODEL)
    agents.wait_for_nodes(["pc0"], SECONDS, [head])
    node = agents.join(1, "--json")
    node.wait_for('"state":"waiting"', SECONDS)
    code = said(node)["code"]
    assert eventually(lambda: [each["name"] for each in agents.status()["pending"]] == ["pc1"])  # as it announces
    (waiting,) = agents.status()["pending"]
    assert (waiting["code"], waiting["name"], waiting["address"]) == (code, "pc1", lab.hosts[1].ipv4)
    with pytest.raises(LabError, match="no node waits with code"):
        agents.call("approve", "AAAA-AAAA")
    assert agents.sights()[-1].nodes == ["pc0"]

    agents.call("approve", code)
    agents.wait_for_nodes(["pc0", "pc1"], SECONDS, [head, node])
    node.wait_for('"state":"joined"', SECONDS)
    agents.call("forget", "pc1")
    agents.wait_for_nodes(["pc0"], SECONDS, [head])
    assert [member["name"] for member in agents.status()["members"]] == ["pc0"]
    assert node.wait() == 1
    assert "it was forgotten by the head" in node.stdout and f"edge-agent approve {code}" in node.stdout


def check_that_it_is_in_no_log_and_no_process_list(token: str, lab: Lab) -> None:
    assert len(token) > 100
    for process in psutil.process_iter(["cmdline"]):
        assert token not in " ".join(process.info["cmdline"] or ())
    logs = [file for host in lab.hosts for file in host.home.parent.glob("*.*")]
    told = [file for file in logs if token in file.read_text("utf-8")]
    assert len(told) == 1  # what `edge-agent token` itself printed
    assert len(logs) > 6


def test_a_node_is_shut_out_by_the_name_it_is_shown_with_and_the_head_is_not(lab: Lab, smollm2_package: Path) -> None:
    agents = Agents(lab)
    head = agents.serve(smollm2_package, *NO_MODEL)
    token = agents.token()
    node = agents.join(1, "--token-file", token)
    agents.wait_for_nodes(["pc0", "pc1"], SECONDS, [head, node])
    agents.status()
    check_that_it_is_in_no_log_and_no_process_list(token.read_text("utf-8").strip(), lab)
    node.interrupt()
    node.wait()
    renamed = agents.join(1, "--name", "attic")
    agents.wait_for_nodes(["attic", "pc0"], SECONDS, [head, renamed])
    agents.call("forget", "attic")
    agents.wait_for_nodes(["pc0"], SECONDS, [head])
    assert renamed.wait() == 1
    with pytest.raises(LabError, match="own PC"):
        agents.call("forget", "pc0")
    assert [member["name"] for member in agents.status()["members"]] == ["pc0"]
    assert agents.sights()[-1].nodes == ["pc0"]


def test_two_fleets_on_one_network_do_not_mix(smollm2_package: Path) -> None:
    with Lab(4) as lab:
        fleets = [Agents(lab, head=index) for index in (0, 1)]
        heads = [agents.serve(smollm2_package, *NO_MODEL) for agents in fleets]
        tokens = [agents.token() for agents in fleets]
        nodes = [agents.join(2 + index, "--token-file", tokens[index]) for index, agents in enumerate(fleets)]
        for agents, names in zip(fleets, (["pc0", "pc2"], ["pc1", "pc3"]), strict=True):
            agents.wait_for_nodes(names, SECONDS, [*heads, *nodes])
        nodes[0].interrupt()
        fleets[0].wait_for_nodes(["pc0"], SECONDS, heads)
        lost = fleets[0].join(2, "--json", "--fleet", "pc1")  # a fleet that has not let it in
        lost.wait_for('"state":"waiting"', SECONDS)
        assert [agents.sights()[-1].nodes for agents in fleets] == [["pc0"], ["pc1", "pc3"]]


def test_a_node_that_was_killed_or_cut_off_comes_back_as_itself(lab: Lab, smollm2_package: Path) -> None:
    agents = Agents(lab)
    head = agents.serve(smollm2_package, *NO_MODEL)
    token = agents.token()
    nodes = [agents.join(index, "--token-file", token) for index in (1, 2)]
    everybody = ["pc0", "pc1", "pc2"]
    agents.wait_for_nodes(everybody, SECONDS, [head, *nodes])

    nodes[0].kill()
    agents.wait_for_nodes(["pc0", "pc2"], SECONDS, [head])
    nodes[0] = agents.join(1)  # it knows its fleet
    agents.wait_for_nodes(everybody, SECONDS, [head, *nodes])

    nodes[0].kill()
    nodes[0] = agents.join(1)  # at once: the head may not know yet that the other is gone
    nodes[0].wait_for("is in the fleet", SECONDS)
    agents.wait_for_nodes(everybody, SECONDS, [head, *nodes])

    lab.cut(2)
    agents.wait_for_nodes(["pc0", "pc1"], SECONDS, [head, *nodes])
    lab.heal(2)
    agents.wait_for_nodes(everybody, SECONDS, [head, *nodes])
    assert {len(sight.nodes) for sight in agents.sights()} <= {0, 1, 2, 3}


def test_an_address_will_do_where_multicast_does_not_pass(lab: Lab, smollm2_package: Path) -> None:
    lab.set_multicast(False)
    agents = Agents(lab)
    head = agents.serve(smollm2_package, *NO_MODEL)
    token = agents.token()
    agents.wait_for_nodes(["pc0"], SECONDS, [head])
    node = agents.join(1, "--token-file", token, "--head", lab.hosts[0].ipv4)
    alone = agents.join(2, "--token-file", token)
    agents.wait_for_nodes(["pc0", "pc1"], SECONDS, [head, node])
    assert alone.wait_for("looking for the head: .*", SECONDS)
    assert "--head" in alone.stdout


def test_a_cloned_home_is_refused_by_name(lab: Lab, smollm2_package: Path) -> None:
    agents = Agents(lab)
    head = agents.serve(smollm2_package, *NO_MODEL)
    node = agents.join(1, "--token-file", agents.token())
    agents.wait_for_nodes(["pc0", "pc1"], SECONDS, [head, node])
    shutil.copytree(lab.hosts[1].home, lab.hosts[2].home, dirs_exist_ok=True)
    clone = agents.join(2)
    assert clone.wait(SECONDS) == 1
    assert "pc1" in clone.stderr
    assert agents.sights()[-1].nodes == ["pc0", "pc1"]
    assert node.returncode is None
