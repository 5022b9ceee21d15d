from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.simulation.report import run
from pipeline.simulation.scenario import Scenario, read_scenario
from shards.errors import ConfigurationError

SCENARIO = """
name = "two stages"
base = "ours"
scheduler = { kv_tokens = 4096, block = 16, context_length = 256, token_budget = 64 }
stages = [{ repeat = 2, step_ms = [[1, 10], [64, 40]] }]
link = { latency_ms = 1, bytes_per_row = 512 }

[[loads]]
users = 2
prompt_tokens = 33
new_tokens = 8

[[loads]]
name = "with a late one"
users = 2
prompt_tokens = 33
new_tokens = 20
[[loads.beside]]
name = "late"
users = 1
start_ms = 100
prompt_tokens = 200
new_tokens = 4

[[variants]]
name = "small steps"
loads = ["with a late one"]
scheduler = { token_budget = 16 }

[[variants]]
name = "slow"
stage = { call_ms = 10 }
link = { latency_ms = 5 }
head_ms = 2
topology = "hub"

[[published]]
variant = "slow"
load = "2"
measure = "first_p50_ms"
value = 100
within = 0.001
"""


def read(folder: Path, text: str) -> Scenario:
    file = folder / "scenario.toml"
    file.write_text(text, "utf-8")
    return read_scenario(file)


def test_a_variant_is_the_base_but_for_what_it_says(tmp_path: Path) -> None:
    systems = read(tmp_path, SCENARIO).systems()
    assert list(systems) == ["ours", "small steps", "slow"]
    (base, loads), (small, few), (slow, all_loads) = systems.values()
    assert [load.title for load in loads] == ["2", "with a late one"]
    assert loads == all_loads
    assert few == loads[1:]
    assert small.config.token_budget == 16
    assert (small.config.kv_tokens, small.config.stages) == (4096, 2)
    assert small.model_copy(update={"scheduler": base.scheduler}).config == base.config
    assert [stage.call_ms for stage in slow.models] == [10, 10]
    assert (slow.link.latency_ms, slow.link.bytes_per_row, slow.topology) == (5, 512, "hub")


def test_the_scheduler_is_told_what_follows_from_the_models(tmp_path: Path) -> None:
    (ours, _), _, (slow, _) = read(tmp_path, SCENARIO).systems().values()
    assert ours.config.stages == 2
    assert ours.config.runs_ahead
    assert not slow.config.runs_ahead
    assert ours.config.step_times is not None
    assert dict(ours.config.step_times)[64] == 40
    assert (ours.config.link_ms, slow.config.link_ms) == (3, 2 + 2 * 2 * 5)


def test_the_report_has_a_row_a_run_and_what_each_gains(tmp_path: Path) -> None:
    seen: list[float] = []
    report = run(read(tmp_path, SCENARIO), lambda _, done, total: seen.append(done / total))
    assert seen == sorted(seen)
    assert seen[-1] == 1
    rows = {(row.variant, row.load): row for row in report.rows}
    assert list(rows) == [
        ("ours", "2"), ("ours", "with a late one"), ("small steps", "with a late one"), ("slow", "2"),
        ("slow", "with a late one"),
    ]  # fmt: skip
    assert rows["ours", "2"].faster == rows["ours", "2"].sooner == 1
    assert rows["slow", "2"].faster < 1
    assert rows["slow", "2"].sooner < 1
    late = rows["ours", "with a late one"]
    assert late.users == 3
    assert {name: measures.tokens for name, measures in late.cohorts.items()} == {"users": 40, "late": 4}
    assert late.measures.tokens == 44
    assert max(rows["small steps", "with a late one"].steps_by_rows) == 16
    (check,) = report.checks
    assert check.got == rows["slow", "2"].measures.first_p50_ms
    assert (check.what, check.ok) == ("slow, 2: first_p50_ms", False)


def test_links_of_a_variant_stand_in_for_the_one_of_the_base(tmp_path: Path) -> None:
    links = '[[variants]]\nname = "apart"\nlinks = [{}, { latency_ms = 9 }, { mbit = 5 }]\n'
    _, _, _, (apart, _) = read(tmp_path, SCENARIO + links).systems().values()
    assert [(link.latency_ms, link.mbit) for link in apart.all_links] == [(0, None), (9, None), (0, 5)]


@pytest.mark.parametrize(
    ("there", "instead", "where", "what"),
    [
        ('name = "two stages"', "name = two stages", "", "this is not TOML: Invalid value (at line 2, column 8)"),
        ('name = "two stages"', "", ": name", "Field required"),
        ("users = 2", "users = 2\nuser = 3", ": loads[0].user", "Extra inputs are not permitted"),
        ("users = 2", "users = -2", ": loads[0].users", "Input should be greater than or equal to 1"),
        ("prompt_tokens = 33", "prompt_tokens = 0", ": loads[0].prompt_tokens", "0 is less than 1"),
        ("[64, 40]", "[64, -4]", ": stages[0].step_ms", "every time must be above 0, and one is -4.0"),
        ("kv_tokens = 4096, ", "", ": scheduler.kv_tokens", "Field required"),
        ("kv_tokens = 4096", "kv_tokens = 10", ": scheduler.kv_tokens", "a KV cache of 10 tokens is smaller than one"),
        ("kv_tokens = 4096", "kv_tokens = 1e9", ": scheduler.kv_tokens", "are 62500000 blocks, and a simulation has"),
        ("block = 16", "block = 'a'", ": scheduler.block", "valid integer"),
        ("block = 16", "block = 16, blocks = 1", ": scheduler.blocks", "there is no such field; there are ageing,"),
        ("repeat = 2", "repeat = 2000", ": stages[0].repeat", "less than or equal to 1000"),
        ("base = ", "policy = 'best'\nbase = ", ": policy", "there is no policy 'best'; there are"),
        ("base = ", "policy_options = {a = 1}\nbase = ", ": policy_options", "our scheduler is set by [scheduler]"),
        ("link = {", "links = [{ latency_ms = 2 }]\nlink = {", ": links", "of 2 stages has 3 links, here are 1"),
        ("link = {", "links = [{}, {}, {}]\nlink = {", ": link", "does not go with `links`"),
        ("latency_ms = 1,", "latency_ms = inf,", ": link.latency_ms", "finite number"),
        ('base = "ours"', 'base = "slow"', ": variants", "two are called 'slow'"),
        ('name = "with a late one"', 'name = "2"', ": loads", "two are called '2'"),
        ("token_budget = 16", "token_budget = 0", ": variants[0].scheduler.token_budget", "0 is less than 1"),
        ("call_ms = 10", "calls = 10", ": variants[1].stages[0].calls", "Extra inputs are not permitted"),
        ('topology = "hub"', 'topology = "star"', ": variants[1].topology", "'chain' or 'hub'"),
        ('loads = ["with', 'loads = ["without', ": variants[0].loads", "no load is called 'without a late one'"),
        ('variant = "slow"', 'variant = "fast"', ": published[0].variant", "'fast' is none of ours, small steps, slow"),
        ('"first_p50_ms"', '"speed"', ": published[0].measure", "'speed' is none of requests, tokens,"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_field(
    tmp_path: Path, there: str, instead: str, where: str, what: str
) -> None:
    assert there in SCENARIO
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, SCENARIO.replace(there, instead, 1))
    assert caught.value.where == f"{tmp_path / 'scenario.toml'}{where}"
    assert what in caught.value.what


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_scenario(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="this is not TOML"):
        read_scenario(tmp_path / "bytes.toml")


def test_a_load_that_cannot_be_served_is_named(tmp_path: Path) -> None:
    scenario = read(tmp_path, SCENARIO.replace("prompt_tokens = 200", "prompt_tokens = 300"))
    with pytest.raises(ConfigurationError) as caught:
        run(scenario)
    assert caught.value.where == "loads[1] (with a late one) under 'ours'"
    assert "the prompt has 300 tokens and the model's context is 256" in caught.value.what
