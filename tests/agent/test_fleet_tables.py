from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from agent.cli.fleet_tables import guessing, status_tables
from shards.errors import StageError


def node(name: str, **changes: Any) -> dict[str, Any]:
    condition = {
        "memory_free": 6_000_000_000,
        "battery": None,
        "on_mains": True,
        "temperature": None,
        "load": None,
    } | changes.pop("condition", {})
    return {
        "name": name,
        "key": f"key of {name}",
        "is_head": False,
        "device": "CPU",
        "condition": condition,
        "hardware": {"memory": 16_000_000_000},
        "versions": {"edge_agent": "1.2.3"},
        "links": {},
        "memory_planned": 0,
        "work": None,
        "problem": None,
    } | changes


def fleet(*nodes: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "model": {"name": "smol", "layers": 30},
        "chains": [],
        "fleet": {"name": "home", "key": "k" * 40, "port": 8115},
        "nodes": list(nodes),
        "pending": [],
        "problem": None,
        "waits_for": "",
    } | changes


def guesses(**changes: Any) -> dict[str, Any]:
    """What a chain tells of them."""
    return {"name": "n-gram", "off": None, "node": None, "sent": 0, "right": 0, "acceptance": None} | changes


def shown(told: dict[str, Any]) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    for table in status_tables(told):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["6.0 of 16.0 GB free", "mains", "1.2.3", "ready"]),
        ({"memory_planned": 812_000_000}, ["6.0 of 16.0 GB free, 812 MB planned"]),
        ({"condition": {"load": 0.37, "temperature": 61.4}}, ["37%, 61 °C"]),
        ({"condition": {"load": 0.0}}, ["0%"]),
        ({"condition": {"battery": 0.4, "on_mains": False}}, ["battery, 40%"]),
        ({"work": {"what": "fetching, 11.0 MB/s (layers 0-11)", "done": 3.0, "total": 4.0}}, ["(layers 0-11), 75%"]),
        ({"work": {"what": "measuring links", "done": 0.0, "total": 0.0}}, ["measuring links "]),
        (
            {"work": {"what": "measuring", "done": 0.0, "total": 1.0}, "problem": "its disk is full"},
            ["its disk is full"],
        ),
        ({"is_head": True}, ["pc (head)"]),
        ({"work": {"what": "[red]\x1b[2J", "done": 0.0, "total": 0.0}}, ["[red]?[2J"]),
    ],
)
def test_a_node_in_a_row(changes: dict[str, Any], words: list[str]) -> None:
    (row,) = [line for line in shown(fleet(node("pc", **changes))) if line.startswith("│ pc ")]
    for word in words:
        assert word in row


def test_a_node_that_carries_layers_serves() -> None:
    chain = {
        "stages": [{"node": "key of pc", "layers": [0, 30], "engine": "llamacpp"}],
        "scheduler": {"running": 2, "waiting": 1},
        "speculation": None,
        "failure": None,
    }
    rows = shown(fleet(node("pc"), chains=[chain]))
    assert any("0-29" in row and "serving" in row for row in rows)
    assert any("pc 0-29 llamacpp" in row for row in rows)


def test_a_model_without_a_fleet_has_no_such_tables() -> None:
    with pytest.raises(StageError, match="--local-stages"):
        status_tables({"model": {}, "chains": []})


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (None, "none"),
        (guesses(), "n-gram"),
        (guesses(name="a", sent=8, right=6, acceptance=0.75), "a, 6 of 8 right (75%)"),
        (guesses(name="a", off="it ended", sent=1, acceptance=0.0), "a, 0 of 1 right (0%); off: it ended"),
        (guesses(name="a", node="key of pc", sent=8, right=6, acceptance=0.75), "a on pc, 6 of 8 right (75%)"),
        (guesses(name="a", node="127.0.0.1"), "a"),
    ],
)
def test_guesses_are_told_with_where_and_why_there_are_none(told: dict[str, Any] | None, words: str) -> None:
    assert guessing(told, {"key of pc": "pc"}).plain == words


def test_a_node_that_carries_the_draft_alone_is_drafting() -> None:
    chain = {
        "stages": [{"node": "key of pc", "layers": [0, 30], "engine": "llamacpp"}],
        "scheduler": {"running": 2, "waiting": 1},
        "speculation": guesses(node="key of idle"),
        "failure": None,
    }

    def state(chain: dict[str, Any]) -> str:
        (row,) = [row for row in shown(fleet(node("pc"), node("idle"), chains=[chain])) if row.startswith("│ idle ")]
        return row.split("│")[-2].strip()

    assert state(chain) == "drafting"
    assert state(chain | {"speculation": guesses(node="key of idle", off="it ended")}) == "ready"
    assert state(chain | {"speculation": None}) == "ready"


def test_the_draft_of_a_node_that_is_gone_has_its_name() -> None:
    chain = {
        "stages": [{"node": "key of pc", "layers": [0, 30], "engine": "llamacpp"}],
        "scheduler": {"running": 2, "waiting": 1},
        "speculation": guesses(node="key of idle", off="the node is gone"),
        "failure": None,
    }
    rows = shown(fleet(node("pc"), chains=[chain], carriers={"key of idle": "idle"}))
    assert any("n-gram on idle; off: the node is gone" in row for row in rows)
