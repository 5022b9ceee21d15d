from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from agent.bench import concurrency, concurrency_plots
from agent.bench.concurrency import DECODING, GENAI, HUB, ONE, POISSON, REPLICAS, TWO
from agent.bench.prompts import chat_prompts
from agent.bench.report import Report
from agent.bench.sides import RATE, Effort
from agent.cli.bench import app
from shards.progress import silent


def measured(users: int, **rates: tuple[float, float | None]) -> list[dict[str, object]]:
    names = {"two": TWO, "replicas": REPLICAS, "hub": HUB}
    return [
        {"users": users, "side": names[side], RATE: rate, DECODING: decoding}
        for side, (rate, decoding) in rates.items()
    ]


def test_targets_are_the_replicas_up_to_32_users_and_three_times_the_hub_in_decoding_from_8_on() -> None:
    report = Report("concurrency", {})
    for users in (1, 8, 64):
        report.runs += measured(users, two=(93.0, 290.0), replicas=(100.0, 300.0), hub=(90.0, 100.0))
    concurrency._set_targets(report, (1, 8, 64), is_small=True)
    assert [(target.what, target.wanted, target.got, target.ok) for target in report.targets] == [
        ("two stages / two replicas, 8 users, decoding tok/s", ">= 0.92", 0.967, True),
        ("two stages / two replicas, 8 users, all tok/s", ">= 0.92", 0.93, True),
        ("two stages / hub and spoke, 1 users, decoding tok/s", ">= 1", 2.9, True),
        ("two stages / hub and spoke, 1 users, all tok/s", ">= 1", 1.033, True),
        ("two stages / hub and spoke, 8 users, decoding tok/s", ">= 3", 2.9, False),
        ("two stages / hub and spoke, 8 users, all tok/s", ">= 1", 1.033, True),
        ("two stages / hub and spoke, 64 users, decoding tok/s", ">= 3", 2.9, False),
        ("two stages / hub and spoke, 64 users, all tok/s", ">= 1", 1.033, True),
    ]


def test_a_larger_model_is_held_to_more_and_what_was_not_measured_is_missed() -> None:
    report = Report("concurrency", {}, runs=measured(2, two=(95.0, None), replicas=(100.0, 300.0), hub=(90.0, 100.0)))
    concurrency._set_targets(report, (2,), is_small=False)
    unmeasured, whole, *_ = report.targets
    assert not unmeasured.ok and "--tokens" in str(unmeasured.got)
    assert (whole.wanted, whole.got, whole.ok) == (">= 0.96", 0.95, False)


def test_all_sides_answer_all_loads_and_leave_no_process(
    smollm2_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrency, "mixed_prompts", chat_prompts)  # all short
    before = set(psutil.Process().children(recursive=True))
    report = concurrency.run(smollm2_package, Effort(users=(2,), rounds=1, new_tokens=4), silent)
    assert set(psutil.Process().children(recursive=True)) <= before
    sides = {TWO, ONE, REPLICAS, GENAI, HUB}
    assert {(run["users"], run["side"]) for run in report.runs} == {
        (users, side) for users in (2, POISSON) for side in sides
    }
    for row in report.results:
        assert row[RATE] > 0
        assert row[DECODING] is None or (row["users"] == 2 and row[DECODING] > 0)
        assert 0 < row["first_token_p50_ms"] <= row["first_token_p95_ms"] <= row["first_token_p99_ms"]
        assert 0 < row["between_tokens_p50_ms"] <= row["between_tokens_p95_ms"] <= row["between_tokens_p99_ms"]
    assert report.settings["stages"] == report.settings["stages of the hub"]
    assert json.loads(json.dumps(report.as_json()))["targets"]
    assert len(report.tables()) == 2
    concurrency_plots.prepare(tmp_path / "pictures")
    concurrency_plots.draw(report, tmp_path / "pictures")
    drawn = sorted((tmp_path / "pictures").iterdir())
    assert [path.name for path in drawn] == ["between_tokens.png", "first_token.png", "throughput.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


@pytest.mark.parametrize("command", ["concurrency", "prefill"])
def test_help_has_examples_and_odd_users_are_refused(command: str) -> None:
    assert CliRunner().invoke(app, [command, "--help"]).output.count(f"edge-agent bench {command}") >= 2
    refused = CliRunner().invoke(app, [command, "--users", "0"])
    assert refused.exit_code == 2
    assert "1,8,16" in refused.output
