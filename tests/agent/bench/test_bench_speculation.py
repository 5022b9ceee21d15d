from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from agent.bench import speculation, speculation_report
from agent.bench.arrivals import ClosedLoop
from agent.bench.domains import DOMAINS, EDIT, EXTRACTION, STORY
from agent.bench.load import Answer, Load, run_traffic
from agent.bench.prompts import as_chat
from agent.bench.sides import RATE
from agent.bench.speculation import SpeculationEffort, decode_rate, stranger
from agent.bench.speculation_report import ALL, SpeculationReport
from agent.bench.speculation_sides import BOTH, MODEL, NGRAM, NONE, Model, Way, adaptive, opened, synchronous
from agent.cli.bench import app
from pipeline.running import RunOptions
from pipeline.speculation.draft_model import DraftModel
from shards.errors import StageError
from shards.progress import silent

EFFORT = SpeculationEffort(users=(1, 4), rounds=1, new_tokens=8, hops=(0, 50), domains=(EXTRACTION, STORY))


def made_up(rates: dict[tuple[str, str], float | None]) -> SpeculationReport:
    """A report of these rates by side and domain, the same at every load."""
    report = SpeculationReport("speculation", {"package": "model", "drafters": [NGRAM]})
    for hop_ms in EFFORT.hops:
        for users in EFFORT.users:
            for (side, domain), rate in rates.items():
                turn = {"hop_ms": hop_ms, "users": users, "domain": domain, "start": 0, "round": 0, "side": side}
                counts = {"answers": 2, "tokens": 16, "steps": 10, "sent_guesses": 8, "right_guesses": 6}
                report.runs.append({**turn, RATE: rate, **counts, "equal_answers": 2})
    return report


RATES: dict[tuple[str, str], float | None] = {
    (NONE, EXTRACTION): 100.0,
    (NONE, STORY): 50.0,
    (adaptive(NGRAM), EXTRACTION): 300.0,
    (adaptive(NGRAM), STORY): 48.0,
    (synchronous(NGRAM), EXTRACTION): 200.0,
    (synchronous(NGRAM), STORY): 48.0,
}


def test_targets_are_each_looked_up_domain_the_worst_domain_of_each_load_long_links_and_being_asynchronous() -> None:
    report = made_up(RATES)
    speculation._set_targets(report, EFFORT, [NGRAM])
    assert [(target.what, target.wanted, target.got, target.ok) for target in report.targets] == [
        ("n-gram: adaptive / no speculation, tok/s, 1 user, 0 ms a hop, extraction", ">= 1.4", 3.0, True),
        *(
            (f"n-gram: adaptive / no speculation, tok/s, {load}, the worst domain (story)", ">= 0.97", 0.96, False)
            for load in ("1 user, 0 ms a hop", "4 users, 0 ms a hop", "1 user, 50 ms a hop", "4 users, 50 ms a hop")
        ),
        ("n-gram: adaptive / no speculation, tok/s, 1 user, 50 ms a hop", ">= 2.5", 1.241, False),
        ("n-gram: adaptive / n-gram: synchronous, tok/s, 1 user, 50 ms a hop", ">= 1.15", 1.069, False),
    ]


def test_the_better_drafter_counts_over_long_links() -> None:
    better = {(adaptive(BOTH), EXTRACTION): 320.0, (adaptive(BOTH), STORY): 160.0}
    report = made_up({**RATES, **better, (synchronous(BOTH), EXTRACTION): 160.0, (synchronous(BOTH), STORY): 80.0})
    speculation._set_targets(report, EFFORT, [NGRAM, BOTH])
    far, ahead = report.targets[-2:]
    assert far.what.startswith(adaptive(BOTH)) and (far.got, far.ok) == (3.2, True)
    assert ahead.what.startswith(f"{adaptive(BOTH)} / {synchronous(BOTH)}") and (ahead.got, ahead.ok) == (2.0, True)


def test_what_was_too_short_to_measure_is_missed() -> None:
    report = made_up({**RATES, (adaptive(NGRAM), EXTRACTION): None})
    speculation._set_targets(report, EFFORT, [NGRAM])
    first, *_ = report.targets
    assert not first.ok and "--tokens" in str(first.got)


def test_results_are_by_load_domain_and_side_and_all_domains_weigh_the_same() -> None:
    report = made_up(RATES)
    speculation._sum_up(report, EFFORT, [NONE, adaptive(NGRAM), synchronous(NGRAM)])
    assert len(report.results) == 2 * 2 * 3 * 3
    [row] = [
        row
        for row in report.results
        if (row["hop_ms"], row["users"], row["domain"], row["side"]) == (50, 4, ALL, adaptive(NGRAM))
    ]
    expected = {RATE: 82.76, "ratio": 1.241, "acceptance": 0.75, "sent_guesses": 16, "wasted_guesses": 4, "answers": 4}
    assert {name: row[name] for name in expected} == expected
    loads, domains, _ = report.tables()
    assert loads.row_count == 4 and domains.row_count == 3


def test_a_rate_leaves_out_answers_that_ended_at_once() -> None:
    long = Answer(0.0, [1.0 + 0.1 * i for i in range(21)], list(range(21)))
    short, none = Answer(0.0, [1.0], [7]), Answer(0.0)
    assert decode_rate(Load((long, short, none)), 1) == pytest.approx(10.0)
    assert decode_rate(Load((short, none)), 1) is None


def test_each_question_is_a_strangers_and_ends_where_the_model_ends_it() -> None:
    ask = stranger(frozenset({2}))
    one, other = ask((1, 2), 5), ask((1, 2), 5)
    assert one.client != other.client and one.id != other.id
    assert (one.stop_tokens, one.max_tokens, one.sampling.temperature) == (frozenset({2}), 5, 0.0)


def test_every_domain_has_several_questions_of_its_own() -> None:
    assert len(DOMAINS) == 7
    questions = [question for of_domain in DOMAINS.values() for question in of_domain]
    assert len(set(questions)) == len(questions) and min(map(len, DOMAINS.values())) >= 3


def test_all_sides_answer_over_long_links_and_leave_no_process(tiny_both_package: Path, tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    effort = SpeculationEffort(users=(2,), rounds=1, new_tokens=16, hops=(2,), widths=(), domains=(EDIT, STORY))
    report = speculation.run(tiny_both_package, effort, silent)
    assert set(psutil.Process().children(recursive=True)) <= before
    sides = {NONE, adaptive(NGRAM), synchronous(NGRAM)}
    assert {(run["domain"], run["side"]) for run in report.runs} == {
        (domain, side) for domain in (EDIT, STORY) for side in sides
    }
    for run in report.runs:
        assert run["answers"] == 4 and run["right_guesses"] <= run["sent_guesses"]
        if run["side"] == NONE:
            assert run["sent_guesses"] == 0 and run["equal_answers"] == run["answers"]
    exact = report.targets[-1]
    assert exact.what.startswith("exact mode") and exact.ok, exact
    data: dict[str, Any] = json.loads(json.dumps(report.as_json()))
    assert data["targets"] and data["settings"]["drafters"] == [NGRAM]
    speculation_report.prepare(tmp_path / "pictures")
    speculation_report.draw(report, tmp_path / "pictures")
    drawn = sorted((tmp_path / "pictures").iterdir())
    assert [path.name for path in drawn] == ["domains.png", "hops.png", "throughput.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_a_draft_model_guesses_alone_and_after_looking_up(tiny_both_package: Path, tmp_path: Path) -> None:
    model = Model.read(tiny_both_package, draft=tiny_both_package)
    assert [way.name for way in model.ways((4,))] == [
        NONE,
        *("n-gram: adaptive", "n-gram: synchronous", "n-gram: 4"),
        *("draft model: adaptive", "draft model: synchronous"),
        *("n-gram, then model: adaptive", "n-gram, then model: synchronous", "n-gram, then model: 4"),
    ]
    options = RunOptions(
        stages=2,
        mode="exact",
        threads=1,
        max_sequences=2,
        kv_tokens=2048,
        draft_patience_ms=float("inf"),  # the machine may be busy
    )
    prompts = as_chat(model.tokenizer, model.manifest.facts, DOMAINS[STORY])
    ways = (Way(), Way(MODEL, width=3), Way(BOTH, width=3))
    with opened(model, ways, options, 0, tmp_path, silent) as sides:
        tokens = {}
        for name, side in sides.items():
            tokens[name] = run_traffic(side.head, ClosedLoop(2, 2), prompts, 12, stranger(frozenset())).tokens
            counts = side.head.snapshot().scheduler
            # the draft is the model itself, in other numbers
            assert bool(counts.right_guesses) == (name != NONE)
    assert len(set(tokens.values())) == 1


def test_a_side_that_does_not_load_ends_the_others(
    tiny_both_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StageError("no memory left")

    monkeypatch.setattr(DraftModel, "start", fail)
    before = set(psutil.Process().children(recursive=True))
    model = Model.read(tiny_both_package, tiny_both_package)
    options = RunOptions(stages=2, mode="exact", threads=1, cache=tmp_path)
    with (
        pytest.raises(StageError, match="no memory left"),
        opened(model, (Way(), Way(MODEL)), options, 1, tmp_path, silent),
    ):
        pass
    assert set(psutil.Process().children(recursive=True)) <= before


def test_help_has_examples_and_odd_hops_are_refused() -> None:
    assert CliRunner().invoke(app, ["speculation", "--help"]).output.count("edge-agent bench speculation") >= 2
    for hops in ("-1", "0,x"):
        refused = CliRunner().invoke(app, ["speculation", "--hops", hops])
        assert refused.exit_code == 2
        assert "--hops" in refused.output
