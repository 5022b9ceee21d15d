"""A fleet of two nodes on loopback over real HTTP, of which one runs llama.cpp: it works as one that runs OpenVINO.

The model's weights are the same numbers in both, f32 and f16. Quantised ones llama.cpp multiplies by rounded numbers,
so a text would depend on who has which layers, and on how much of its prompt was still known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from served_fleet import LONG, QUESTION, ServedFleet, unsplit_answer, wait_for_heads
from tiny_gguf import write_tiny_gguf

from agent import paths
from agent.cli.fleet_tables import status_tables
from agent.fleet.head.fleet_options import FleetOptions
from agent.fleet.node.node import Node
from agent.fleet.node.node_settings import EngineChoice, NodeSettings
from agent.serving import Serving
from exporters.export import export
from pipeline.planning.plan import Plan, Wish
from pipeline.running import RunOptions
from pipeline.stages import LOOPBACK
from shards.manifest import LLAMACPP_TENSORS, WEIGHTS
from shards.store import PackageStore

OPTIONS = FleetOptions(
    wish=Wish(users=2, context=2048, stages=2, replicas=False),
    min_nodes=2,
    port=0,
    interface=LOOPBACK,
    announced=False,
    node=NodeSettings(name="desk", device="CPU", engine="openvino", threads=1, memory=4 * 10**9),
)
ENGINES = {"openvino": "openvino-paged", "llamacpp": "llamacpp"}


class Fleet(ServedFleet):
    """A head with its own node, and a node `other` with an engine that a test chooses."""

    def __init__(self, serving: Serving, engine: str, folder: Path) -> None:
        super().__init__(serving)
        self.engine, self.folder = engine, folder
        self.answer = ""
        """What it says, whatever happens to it."""

    def join_with(self, choice: EngineChoice) -> Node:
        """Start the other node, and let it in."""
        return self.join(NodeSettings(name="other", engine=choice, threads=1, memory=4 * 10**9), self.folder)

    def stage_of(self, name: str) -> dict[str, Any]:
        """The stage of a node in the chain at work."""
        told = self.get("/fleet")
        keys_by_name = {node["name"]: node["key"] for node in told["nodes"]}
        (stage,) = [stage for stage in told["chains"][0]["stages"] if stage["node"] == keys_by_name[name]]
        return dict(stage)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a random llama of four layers, with both backends. Read only."""
    source = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_gguf(source, layers=4, stored="F32", metadata={"llama.context_length": 4096})
    return export(str(source), source.with_suffix(""), weights="fp16", verified=False).package


@pytest.fixture(scope="module", params=ENGINES)
def fleet(request: pytest.FixtureRequest, package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("head")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(paths, "config_folder", lambda: folder / "config")
        patch.setattr(paths, "cache_folder", lambda: folder / "cache")
        wait_for_heads(patch)
        options = RunOptions(mode="exact", draft="ngram")
        serving = stack.enter_context(Serving(package, options, fleet=OPTIONS, port=0))
        fleet = Fleet(serving, ENGINES[request.param], tmp_path_factory.mktemp("other"))
        stack.enter_context(fleet.http)
        stack.enter_context(fleet.join_with(request.param))
        fleet.wait(lambda told: told["chains"])
        fleet.answer = unsplit_answer(package)
        assert fleet.ask() == fleet.answer
        yield fleet


def test_each_stage_runs_on_the_engine_of_its_node(fleet: Fleet) -> None:
    assert {name: fleet.stage_of(name)["engine"] for name in ("desk", "other")} == {
        "desk": "openvino-paged",
        "other": fleet.engine,
    }
    told = fleet.get("/fleet")
    assert {node["name"]: list(node["engines"]) for node in told["nodes"]} == {
        "desk": ["openvino-paged"],
        "other": [fleet.engine],
    }
    planned = Plan.model_validate(fleet.get("/fleet/plan")["plan"])
    assert sorted(stage.engine for stage in planned.chains[0].stages) == sorted(["openvino-paged", fleet.engine])
    assert all(edge == int(edge) for edge in planned.chains[0].edges)
    (chains,) = [table for table in status_tables(told) if "layers" in str(table.title)]
    assert fleet.engine in str(next(iter(chains.columns[1].cells)))


def test_it_answers_and_streams_the_same_text(fleet: Fleet) -> None:
    assert fleet.ask() == fleet.answer
    with fleet.http.stream("POST", "/v1/chat/completions", json={**QUESTION, "stream": True}) as streamed:
        chunks = [
            json.loads(line.removeprefix("data: ")) for line in streamed.iter_lines() if line.startswith("data: {")
        ]
    pieces = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(pieces) == fleet.answer


def test_one_who_leaves_frees_everything(fleet: Fleet) -> None:
    with fleet.http.stream("POST", "/v1/completions", json=LONG) as answer:
        lines = answer.iter_lines()
        next(lines)
        fleet.wait(lambda told: told["chains"][0]["scheduler"]["running"])
    told = fleet.wait(lambda told: not told["chains"][0]["scheduler"]["running"])
    assert told["chains"][0]["scheduler"]["kv_used"] == 0
    assert fleet.ask() == fleet.answer


def test_nothing_is_fetched_for_another_engine(fleet: Fleet) -> None:
    (manifest,) = (fleet.folder / "packages").glob("*/manifest.json")
    store = PackageStore(manifest.parent)
    fetched = {
        path for path in (WEIGHTS, LLAMACPP_TENSORS) if len(store.missing(store.pieces(path))) < len(store.pieces(path))
    }
    assert fetched == {LLAMACPP_TENSORS if fleet.engine == "llamacpp" else WEIGHTS}


def test_a_killed_stage_is_replaced_and_the_answer_is_the_same(fleet: Fleet) -> None:
    (old,) = fleet.get("/fleet")["chains"]
    running = [child for child in psutil.Process().children() if "pipeline.stage_process" in child.cmdline()]
    assert len(running) == 2
    with fleet.http.stream("POST", "/v1/completions", json=LONG) as answer:
        lines = answer.iter_lines()
        next(lines)
        fleet.wait(lambda told: told["chains"][0]["scheduler"]["running"])
        max(running, key=lambda process: "llama_cpp" in loaded(process)).kill()
        rest = "".join(lines)
    assert rest.count('"error"') == 1 and "the process ended" in rest  # and never a shorter success
    told = fleet.wait(lambda told: told["chains"] and told["chains"][0]["id"] != old["id"])
    assert {stage["engine"] for stage in told["chains"][0]["stages"]} == {"openvino-paged", fleet.engine}
    assert fleet.ask() == fleet.answer


def loaded(process: psutil.Process) -> str:
    """The libraries of a process."""
    return " ".join(mapped.path for mapped in process.memory_maps())


def test_a_node_that_goes_and_comes_again_serves_again(fleet: Fleet) -> None:
    (key,) = [node["key"] for node in fleet.get("/fleet")["nodes"] if node["name"] == "other"]
    assert fleet.http.post("/fleet/forget", json={"node": "other"}).status_code == 200
    fleet.wait(lambda told: not told["chains"] and "2 stages" in (told["problem"] or ""))
    refused = fleet.http.post("/v1/chat/completions", json=QUESTION)
    assert refused.status_code == 503 and "2 stages" in refused.text
    choice: EngineChoice = "llamacpp" if fleet.engine == "llamacpp" else "openvino"
    with fleet.join_with(choice) as again:
        fleet.wait(lambda told: told["chains"])
        assert again.key != key
        assert fleet.ask() == fleet.answer


def test_a_pc_with_both_engines_is_measured_on_both_and_runs_the_planned_one(
    smollm2_llamacpp_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "config_folder", lambda: tmp_path / "config")
    monkeypatch.setattr(paths, "cache_folder", lambda: tmp_path / "cache")
    wait_for_heads(monkeypatch)
    alone = OPTIONS.model_copy(
        update={
            "wish": Wish(users=2, context=512),
            "min_nodes": 1,
            "node": OPTIONS.node.model_copy(update={"engine": "auto"}),
        }
    )
    with Serving(smollm2_llamacpp_package, RunOptions(mode="fast"), fleet=alone, port=0) as serving:
        fleet = Fleet(serving, "any", tmp_path)
        with fleet.http:
            told = fleet.wait(lambda told: told["chains"])
            (node,) = told["nodes"]
            assert list(node["engines"]) == list(ENGINES.values())
            assert node["milliseconds"] in node["engines"].values()
            preview = fleet.get("/fleet/plan")
            (planned,), (stage,) = preview["plan"]["chains"][0]["stages"], told["chains"][0]["stages"]
            assert stage["engine"] == planned["engine"] and preview["is_current"] and not preview["unmeasured"]
            assert fleet.ask()
