from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.bench import memory
from agent.bench.load import run_load
from agent.bench.prompts import chat_prompts
from agent.bench.report import Report, at_least, at_most, holds
from agent.bench.rival import Rival
from agent.bench.sides import Effort, Measure, compare, ratio
from agent.cli.bench import app
from pipeline.running import RunningModel, RunOptions
from pipeline.tokenizer import Tokenizer
from shards import manifest
from shards.errors import StageError
from shards.progress import silent


def test_a_report_is_ok_when_every_target_is() -> None:
    report = Report("speed", {"rounds": 3}, targets=[at_least("ratio", 0.98, 0.97), at_most("ms", 0.4, 1.0)])
    assert report.ok
    report.targets.append(holds("same tokens", False, "3 of 4"))
    data = json.loads(json.dumps(report.as_json()))
    assert not data["ok"]
    assert data["targets"][0] == {"what": "ratio", "wanted": ">= 0.97", "got": 0.98, "ok": True}
    assert data["targets"][2] == {"what": "same tokens", "wanted": "true", "got": "3 of 4", "ok": False}
    assert {"openvino", "python", "cores"} <= data["machine"].keys()
    assert len(report.tables()) == 1  # no results, targets only


def test_sides_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []
    rates = {"a": iter([1.0, 10.0, 20.0, 40.0]), "b": iter([1.0, 20.0, 20.0, 20.0])}

    def side(name: str, users: int) -> float:
        order.append(name)
        return next(rates[name])

    report = Report("speed", {})
    effort = Effort(users=(4,), rounds=3, new_tokens=8)
    sides = {name: lambda users, name=name: side(name, users) for name in rates}
    medians = compare(report, lambda: nullcontext(sides), effort, silent)
    assert order == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert medians == {4: {"a": 20.0, "b": 20.0}}
    assert [run["tokens_per_second"] for run in report.runs if run["side"] == "a"] == [10.0, 20.0, 40.0]
    assert ratio(report, 4, "a", "b") == 1.0  # of 0.5, 1 and 2: rounds are compared, not medians


def test_each_start_begins_afresh_and_counts_for_the_medians() -> None:
    started: list[int] = []

    @contextmanager
    def start() -> Iterator[Mapping[str, Measure]]:
        started.append(len(started))
        number = started[-1]
        yield {"a": lambda users: 10.0 * users + number}

    report = Report("speed", {})
    assert compare(report, start, Effort((1, 2), 2, 8, starts=3), silent) == {1: {"a": 11.0}, 2: {"a": 21.0}}
    assert started == [0, 1, 2] and len(report.runs) == 12


def test_all_sides_say_the_same_in_exact_mode(tiny_chat_package: Path) -> None:
    facts = manifest.read(tiny_chat_package).facts
    prompts = chat_prompts(Tokenizer.load(tiny_chat_package), facts, 3)
    with Rival("unsplit", tiny_chat_package) as unsplit, Rival("genai", tiny_chat_package) as genai:
        expected = unsplit.run(prompts, 8)[1]
        seconds, said = genai.run(prompts, 8)
    assert seconds > 0
    assert [len(answer) for answer in said] == [8, 8, 8]
    with RunningModel.open(tiny_chat_package, RunOptions(mode="exact", threads=1)) as model:
        load = run_load([model.head], prompts, 8)
    assert [list(answer) for answer in load.tokens] == expected
    assert len(load.first_token_seconds) == 3 and max(load.first_token_seconds) < load.seconds


def test_a_rival_that_cannot_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="genai process ended"):
        Rival("genai", tmp_path)


def test_a_stage_holds_its_own_layers_only(smollm2_package: Path) -> None:
    report = memory.run(smollm2_package, memory.QUICK, silent)
    assert report.ok, report.targets
    assert [result["layers"] for result in report.results] == ["0-0", "0-9", "0-29"]


@pytest.mark.parametrize("command", ["memory", "parity", "pipeline"])
def test_help_has_an_example_and_odd_users_are_refused(command: str) -> None:
    assert f"edge-agent bench {command}" in CliRunner().invoke(app, [command, "--help"]).output
    refused = CliRunner().invoke(app, [command, "--users", "1,x"])
    assert refused.exit_code == 2
    assert "1,8,16" in refused.output
