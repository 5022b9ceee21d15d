"""`edge-agent simulate` as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent.cli.simulate import shipped
from pipeline.simulation.scenario import read_scenario

COMMAND = [sys.executable, "-c", "from agent.cli import main; main()", "simulate"]
SCENARIO = """
name = "a [small] one"
about = "Two stages [and] a hub."
base = "ours"
scheduler = { kv_tokens = 4096, block = 16, context_length = 256 }
stages = [{ repeat = 2, step_ms = [[1, 10], [64, 40]] }]
variants = [{ name = "hub [/x]", topology = "hub", link = { latency_ms = 5 } }]

[[loads]]
users = 2
prompt_tokens = 33
new_tokens = 8

[[loads]]
users = 4
prompt_tokens = 33
new_tokens = 8
beside = [{ name = "late [/y]", users = 1, prompt_tokens = 100, new_tokens = 2, start_ms = 50 }]

[[published]]
variant = "hub [/x]"
load = "2"
measure = "decode"
value = VALUE
"""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, encoding="utf-8", timeout=240, check=False)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(SCENARIO.replace("VALUE", "50"), "utf-8")  # two users, 2 x (10 + 2 x 5) ms a round of both
    return file


def test_tables_picture_and_file(scenario: Path, tmp_path: Path) -> None:
    done = simulate(str(scenario), "--plot", str(tmp_path / "a.png"), "-o", str(tmp_path / "a.json"))
    assert done.returncode == 0, done.stderr
    for part in ("Two stages [and] a hub.", "hub [/x], against ours", "late [/y]", "hub [/x], 2: decode", "ok"):
        assert part in done.stdout
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "a.json").read_text("utf-8"))["ok"]


def test_json_has_all_there_is(scenario: Path) -> None:
    done = simulate(str(scenario), "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["targets"] == [
        {"what": "hub [/x], 2: decode", "wanted": "50 within 10 %", "got": pytest.approx(50, rel=0.1), "ok": True}
    ]
    assert [(row["variant"], row["users"]) for row in said["results"]] == [
        ("ours", 2), ("ours", 5), ("hub [/x]", 2), ("hub [/x]", 5)
    ]  # fmt: skip
    assert said["results"][2]["faster"] < 1
    assert {"stages", "steps_by_rows", "cohorts", "kv_peak"} <= said["runs"][0].keys()


def test_a_missed_figure_is_an_exit_code(scenario: Path) -> None:
    scenario.write_text(SCENARIO.replace("VALUE", "90"), "utf-8")
    done = simulate(str(scenario))
    assert done.returncode == 1
    assert "missed" in done.stdout
    assert not done.stderr


@pytest.mark.parametrize(
    ("there", "instead", "what"),
    [
        ("users = 2", "users = none", "this is not TOML"),
        ("users = 2", "users = 2\ncolour = 1", "small.toml: loads[0].colour: Extra inputs are not permitted"),
        ("new_tokens = 8", "new_tokens = 400", "small.toml: loads[0] (2) under 'ours': the answer of 'users 0' ended"),
    ],
)
def test_one_clear_error(scenario: Path, there: str, instead: str, what: str) -> None:
    scenario.write_text(SCENARIO.replace("VALUE", "50").replace(there, instead, 1), "utf-8")
    done = simulate(str(scenario))
    assert done.returncode == 1
    assert not done.stdout
    assert what in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_names_that_are_not_there() -> None:
    for arguments, what in (
        (["nobody"], "no such file"),
        (["x", "--plot", "x.gif"], "no such file"),
        ([], "which scenario?"),
    ):
        done = simulate(*arguments)
        assert done.returncode
        assert what in " ".join(done.stderr.split())
    refused = simulate("nobody", "--json")
    assert json.loads(refused.stdout)["error"]["type"] == "ConfigurationError"


def test_a_picture_that_cannot_be_is_refused_before_the_work(scenario: Path, tmp_path: Path) -> None:
    for option in ("--plot", "-o"):
        done = simulate(str(scenario), option, str(tmp_path / "none" / "a.png"))
        assert (done.returncode, done.stdout) == (1, "")
        assert "there is no folder" in " ".join(done.stderr.split())


def test_the_example_of_the_help_can_be_run() -> None:
    (example,) = [
        name for name in shipped() if f"edge-agent simulate {name} " in " ".join(simulate("-h").stdout.split())
    ]
    done = simulate(example, "--json")
    assert json.loads(done.stdout)["results"]


def test_what_is_shipped_is_listed_and_can_be_read() -> None:
    done = simulate("--list", "--json")
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)) == list(shipped())
    for file in shipped().values():
        assert read_scenario(file).about
