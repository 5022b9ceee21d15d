"""A fleet of two nodes on loopback over real HTTP, of which one carries the draft alone: it changes no answer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from served_fleet import LONG, PATIENCE, ServedFleet, unsplit_answer, wait_for_heads
from tiny_gguf import write_tiny_gguf

from agent import paths
from agent.cli.fleet_tables import status_tables
from agent.fleet.head import draft_node, fleet_drafts
from agent.fleet.head.fleet_options import FleetOptions
from agent.fleet.node.node import Node
from agent.fleet.node.node_settings import NodeSettings
from agent.serving import Serving
from exporters.export import export
from pipeline.planning.plan import Wish
from pipeline.running import RunOptions
from pipeline.speculation.draft_run import DraftRun
from pipeline.speculation.drafter import DrafterFacts
from pipeline.stages import LOOPBACK
from shards import manifest as manifests

USERS, CONTEXT = 16, 4096
IDLE_MEMORY = 265_000_000
"""Of the other node: room for the draft, whose KV cache is u8, and not for the model, whose is f32."""
RETURNED = "the draft small runs on other now"
OPTIONS = FleetOptions(
    wish=Wish(users=USERS, context=CONTEXT, stages=1, replicas=False),
    min_nodes=2,
    port=0,
    interface=LOOPBACK,
    announced=False,
    node=NodeSettings(name="desk", device="CPU", engine="openvino", threads=1, memory=4 * 10**9),
)


class Fleet(ServedFleet):
    """A head with its own node, and a node `other` that carries no layers."""

    def __init__(self, serving: Serving, folder: Path) -> None:
        super().__init__(serving)
        assert serving.fleet is not None
        self.model, self.folder = serving.fleet, folder
        self.other: Node

    def come(self) -> Node:
        """The other node."""
        settings = NodeSettings(name="other", engine="openvino", threads=1, memory=IDLE_MEMORY)
        self.other = self.join(settings, self.folder)
        return self.other

    @property
    def drafter(self) -> DrafterFacts:
        """Of the chain at work; whether it is too slow to pay is not its own matter."""
        (copy,) = self.model.copies
        drafter = copy.head.snapshot().drafter
        assert drafter is not None
        return drafter

    @property
    def events(self) -> str:
        """What has happened."""
        return "\n".join(event["what"] for event in self.get("/fleet")["events"])

    def key_of(self, name: str) -> str:
        """Of a node that is in."""
        (key,) = [node["key"] for node in self.get("/fleet")["nodes"] if node["name"] == name]
        return str(key)

    def memory_of(self, name: str) -> int:
        """What is planned for a node."""
        (memory,) = [node["memory_planned"] for node in self.get("/fleet")["nodes"] if node["name"] == name]
        return int(memory)

    def sent(self) -> int:
        """Guesses so far."""
        (chain,) = self.get("/fleet")["chains"]
        return int(chain["speculation"]["sent"])

    def plan_for(self, stages: int, old: Sequence[int]) -> int:
        """Wait for a new chain of so many stages; its number."""
        assert self.http.post("/fleet/apply", json={"stages": stages}).status_code == 200
        told = self.wait(lambda told: told["chains"] and told["chains"][0]["id"] not in old and not told["retiring"])
        assert len(told["chains"][0]["stages"]) == stages
        return int(told["chains"][0]["id"])

    def table(self) -> str:
        """What `status` says of the chain's guesses."""
        (chains,) = [table for table in status_tables(self.get("/fleet")) if "layers" in str(table.title)]
        return str(next(iter(chains.columns[4].cells)))


def is_off(told: dict[str, Any], why: str = "") -> bool:
    """Whether the draft of the chain is off, for a reason of its own; one that is too slow is at work."""
    off = told["chains"][0]["speculation"]["off"]
    return bool(off) and why in off and "too slow" not in off


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a random llama of a single layer. Read only."""
    source = tmp_path_factory.mktemp("draft") / "small.gguf"
    write_tiny_gguf(source, layers=1, metadata={"llama.context_length": 4096, "general.name": "small"})
    return export(str(source), source.with_suffix(""), weights="keep", backend="openvino", verified=False).package


@pytest.fixture(scope="module")
def answer(tiny_chat_package: Path) -> str:
    """What it says, whoever guesses."""
    return unsplit_answer(tiny_chat_package)


@contextmanager
def served(package: Path, draft: Path, folder: Path, where: str) -> Iterator[Fleet]:
    """A fleet of both nodes at work."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(paths, "config_folder", lambda: folder / "config")
        patch.setattr(paths, "cache_folder", lambda: folder / "cache")
        wait_for_heads(patch)
        patch.setattr(draft_node, "_MOST_STEPS", float("inf"))  # how far loopback is depends on who else computes
        patient = partial(DraftRun, patience_ms=float("inf"))  # drafts have the lowest priority
        patch.setattr(fleet_drafts, "DraftRun", patient)
        options = RunOptions(mode="exact", draft=str(draft), draft_tokens=4)
        fleet_options = OPTIONS.model_copy(update={"draft_node": where})
        serving = stack.enter_context(Serving(package, options, fleet=fleet_options, port=0))
        fleet = Fleet(serving, folder / "other")
        stack.enter_context(fleet.http)
        stack.callback(lambda: fleet.other.close())
        fleet.come()
        fleet.wait(lambda told: told["chains"])
        yield fleet


@pytest.fixture(scope="module")
def fleet(tiny_chat_package: Path, draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with served(tiny_chat_package, draft, tmp_path_factory.mktemp("auto"), draft_node.AUTO) as fleet:
        yield fleet


def test_an_idle_node_drafts_and_the_text_is_the_unsplit_models(fleet: Fleet, answer: str, draft: Path) -> None:
    other = fleet.key_of("other")
    (chain,) = fleet.get("/fleet")["chains"]
    assert [stage["node"] for stage in chain["stages"]] == [fleet.key_of("desk")]
    assert (chain["speculation"]["name"], chain["speculation"]["node"]) == ("n-gram, then small", other)
    assert fleet.ask() == answer
    before = fleet.sent()
    assert fleet.ask() == answer and fleet.sent() > before
    assert fleet.drafter.off is None and fleet.drafter.guess_ms > 0
    assert "n-gram, then small on other" in fleet.table()
    assert fleet.get("/fleet")["left_out"][other].endswith("; it runs the draft")
    assert (fleet.folder / "packages" / manifests.read(draft).package_id / manifests.MANIFEST).exists()


def test_the_memory_of_a_draft_is_planned_on_its_node(fleet: Fleet) -> None:
    kv_bytes = USERS * CONTEXT * 2 * 2 * 16  # u8 keys and values of two heads of 16, in one layer
    assert kv_bytes < fleet.memory_of("other") < IDLE_MEMORY
    assert fleet.memory_of("desk") == fleet.get("/fleet")["plan"]["chains"][0]["stages"][0]["memory"]


def test_a_draft_whose_process_dies_costs_guesses_alone(fleet: Fleet, answer: str) -> None:
    chain = fleet.get("/fleet")["chains"][0]["id"]
    (stage,) = fleet.other._stages.values()
    assert stage._child is not None
    process, rest = psutil.Process(stage._child.pid), ""
    with fleet.http.stream("POST", "/v1/completions", json=LONG | {"max_tokens": 400}) as streamed:
        lines = streamed.iter_lines()
        next(lines)
        process.kill()
        rest = "".join(lines)
    assert '"error"' not in rest and '"finish_reason":"length"' in rest.replace(": ", ":")
    told = fleet.wait(lambda told: is_off(told, "the process ended") or RETURNED in fleet.events)
    assert told["chains"][0]["id"] == chain
    if RETURNED not in fleet.events:  # the answer may have taken as long as a new one to load
        assert is_off(told, "n-gram goes on")
        assert [node["memory_planned"] for node in told["nodes"] if node["name"] == "other"] == [0]
    assert fleet.ask() == answer


def test_a_draft_whose_node_is_needed_for_layers_ends_with_its_chain(fleet: Fleet, answer: str) -> None:
    """And a chain that comes later has one on the idle node again, when the layers before it are gone."""
    ids = [chain["id"] for chain in fleet.get("/fleet")["chains"]]
    for stages, where in ((2, "desk"), (1, "other"), (2, "desk"), (1, "other")):
        ids.append(fleet.plan_for(stages, ids))
        assert fleet.ask() == answer
        key = fleet.key_of(where)
        fleet.wait(lambda told, key=key: told["chains"][0]["speculation"]["node"] == key)
        assert fleet.ask() == answer
        assert fleet.drafter.off is None
        assert [chain["id"] for chain in fleet.get("/fleet")["chains"]] == ids[-1:]


def test_a_draft_of_a_chain_that_stays_makes_way_for_layers_and_comes_back(
    fleet: Fleet, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (running,) = fleet.model._running
    assert running.draft is not None and running.draft.memory
    with monkeypatch.context() as patch:
        patch.setattr(fleet_drafts.FleetDrafts, "settle", lambda *_: None)  # planning may be under way: not yet
        fleet.model._opener._drafts.make_way([running.draft])
        assert is_off(fleet.get("/fleet"), "its node carries layers now")
        assert fleet.memory_of("other") == 0 == running.draft.memory
        fleet.wait(lambda _: not fleet.other.status.stages)
        assert fleet.ask() == answer
    fleet.model._changed.set()
    told = fleet.wait(lambda told: not is_off(told))
    assert told["chains"][0]["speculation"]["node"] == fleet.key_of("other")
    assert RETURNED in fleet.events
    before = fleet.sent()
    assert fleet.ask() == answer and fleet.sent() > before


def test_a_draft_whose_node_is_forgotten_costs_guesses_alone(fleet: Fleet, answer: str) -> None:
    (chain,), other = fleet.get("/fleet")["chains"], fleet.key_of("other")
    assert chain["speculation"]["node"] == other and fleet.drafter.off is None
    with fleet.http.stream("POST", "/v1/completions", json=LONG | {"max_tokens": 400}) as streamed:
        lines = streamed.iter_lines()
        next(lines)
        assert fleet.http.post("/fleet/forget", json={"node": "other"}).status_code == 200
        rest = "".join(lines)
    assert '"error"' not in rest
    guesses = fleet.wait(lambda told: is_off(told, "the node is gone (it was forgotten by the head)"))["chains"][0]
    assert guesses["id"] == chain["id"]
    assert guesses["speculation"]["node"] == other
    assert "small on other" in fleet.table() and "the node is gone" in fleet.table()
    assert fleet.ask() == answer
    fleet.wait(lambda _: not fleet.other.status.stages)


def test_a_draft_comes_back_to_an_idle_node_that_joins(fleet: Fleet, answer: str) -> None:
    chain, end = fleet.get("/fleet")["chains"][0]["id"], time.monotonic() + PATIENCE
    with fleet.come():
        while is_off(fleet.get("/fleet")):
            assert fleet.ask() == answer and time.monotonic() < end
        told = fleet.get("/fleet")
        assert told["chains"][0]["speculation"]["node"] == fleet.key_of("other")
        assert told["chains"][0]["id"] == chain
        before = fleet.sent()
        assert fleet.ask() == answer and fleet.sent() > before


def test_the_heads_pc_drafts_where_that_is_wanted(
    tiny_chat_package: Path, draft: Path, answer: str, tmp_path: Path
) -> None:
    with served(tiny_chat_package, draft, tmp_path, draft_node.HEAD_PC) as fleet:
        desk = fleet.key_of("desk")
        assert fleet.get("/fleet")["chains"][0]["speculation"]["node"] == desk
        assert fleet.ask() == answer
        assert fleet.sent() and fleet.drafter.off is None
        assert not fleet.other.status.stages and fleet.memory_of("other") == 0
        planned: dict[str, Any] = fleet.get("/fleet")["plan"]["chains"][0]["stages"][0]
        assert fleet.memory_of("desk") > planned["memory"]


def test_the_heads_pc_drafts_where_the_node_that_is_wanted_is_not_there(
    tiny_chat_package: Path, draft: Path, answer: str, tmp_path: Path
) -> None:
    with served(tiny_chat_package, draft, tmp_path, "attic") as fleet:
        assert fleet.get("/fleet")["chains"][0]["speculation"]["node"] == fleet.key_of("desk")
        assert "runs on this PC, not where it shall: no node that is here is called 'attic'" in fleet.events
        assert fleet.ask() == answer
