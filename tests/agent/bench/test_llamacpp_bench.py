from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from agent import paths
from agent.bench import engines
from agent.bench.engines import CONTROL, MIXED, NAMES
from agent.bench.llamacpp_control import LlamaCppControl
from agent.bench.pipeline import ONE, REPLICAS, TWO
from agent.bench.prompts import chat_prompts
from agent.bench.report import Report
from agent.bench.sides import RATE, Effort
from agent.cli.bench import app
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests
from shards.errors import ConfigurationError, ExportError, PackageError, StageError
from shards.progress import silent


def runs(users: int, **rates: float) -> list[dict[str, object]]:
    names = {"one": ONE, "two": TWO, "replicas": REPLICAS}
    sides = {side: f"{NAMES['llamacpp']}, {name}" for side, name in names.items()} | {"control": CONTROL}
    return [{"users": users, "side": sides[side], RATE: rate} for side, rate in rates.items()]


def test_targets_are_llama_cpps_own_speed_one_core_and_two_replicas() -> None:
    report = Report("engines", {})
    report.runs += runs(1, one=96.0, two=90.0, replicas=100.0, control=100.0)
    report.runs += runs(8, one=96.0, two=90.0, replicas=100.0, control=100.0)
    engines.set_targets(report, (1, 8))
    assert [(target.what, target.wanted, target.got, target.ok) for target in report.targets] == [
        ("llama.cpp, one core / llama-cpp-python, tok/s, 1 users", ">= 0.97", 0.96, False),
        ("llama.cpp, one core / llama-cpp-python, tok/s, 8 users", ">= 0.95", 0.96, True),
        ("llama.cpp, two stages / llama.cpp, one core, tok/s, 1 users", ">= 0.9", 0.938, True),
        ("llama.cpp, two stages / llama.cpp, two replicas, tok/s, 8 users", ">= 0.85", 0.9, True),
    ]


def test_the_control_says_the_same_alone_and_in_a_batch(smollm2_llamacpp_package: Path, smollm2_gguf: Path) -> None:
    facts = manifests.read(smollm2_llamacpp_package).facts
    prompts = chat_prompts(Tokenizer.load(smollm2_llamacpp_package), facts, 2)
    with LlamaCppControl(smollm2_gguf, users=2, context=128, cores=(0,)) as control:
        alone = [control.run([prompt], 12) for prompt in prompts]
        rate, together = control.run(prompts, 12)
    assert rate > 0 and all(one > 0 for one, _ in alone)
    assert [len(answer) for answer in together] == [12, 12]
    assert [answer[:4] for _, (answer,) in alone] == [answer[:4] for answer in together]


def test_a_control_without_its_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="llama-cpp-python process ended"):
        LlamaCppControl(tmp_path / "none.gguf", users=1, context=64, cores=(0,))


def test_all_sides_answer_all_users_and_leave_no_process(tiny_both_package: Path, tiny_gguf: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    report = engines.run(tiny_both_package, tiny_gguf, Effort(users=(2,), rounds=1, new_tokens=8), silent)
    assert set(psutil.Process().children(recursive=True)) <= before
    sides = {f"{name}, {side}" for name in NAMES.values() for side in (ONE, TWO, REPLICAS)} | {*MIXED, CONTROL}
    assert {row["side"] for row in report.results} == sides == {run["side"] for run in report.runs}
    assert all(row["2 users"] > 0 for row in report.results)
    assert set(report.settings["stages"]) == {*NAMES.values(), *MIXED}
    data = json.loads(json.dumps(report.as_json()))
    assert len(data["targets"]) == 2 and len(report.tables()) == 2


def test_a_package_or_a_gguf_is_taken(
    smollm2_package: Path,
    smollm2_llamacpp_package: Path,
    smollm2_gguf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paths, "cache_folder", lambda: tmp_path)
    given = (smollm2_llamacpp_package, smollm2_gguf.resolve())
    assert engines.sources(smollm2_llamacpp_package, silent) == given
    with pytest.raises(PackageError, match=r"no llama\.cpp backend"):
        engines.sources(smollm2_package, silent)
    with pytest.raises(ExportError):  # what it makes of a GGUF that is not there
        engines.sources(tmp_path / "none.gguf", silent)
    kept = tmp_path / "packages" / f"{smollm2_gguf.stem}-both"
    kept.mkdir(parents=True)
    manifest = manifests.read(smollm2_llamacpp_package)
    manifests.write(kept, manifest)
    assert engines.sources(smollm2_gguf, silent) == (kept, smollm2_gguf)  # and is not made again
    lost = tmp_path / "lost"
    lost.mkdir()
    manifests.write(lost, manifest.model_copy(update={"source": {"path": str(tmp_path / "gone.gguf")}}))
    with pytest.raises(ConfigurationError, match=r"gone\.gguf.*Give the GGUF"):
        engines.sources(lost, silent)


def test_help_has_examples_and_odd_users_are_refused() -> None:
    assert CliRunner().invoke(app, ["engines", "--help"]).output.count("edge-agent bench engines") >= 2
    refused = CliRunner().invoke(app, ["engines", "--users", "0"])
    assert refused.exit_code == 2
