"""`edge-agent export` and `edge-agent inspect`, as a user runs them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packages import ir_of
from typer.testing import CliRunner

from agent.cli import export, inspect
from agent.cli.app import app
from agent.cli.inspect import needs
from exporters.export import Export
from shards import manifest as manifests
from shards.errors import ConfigurationError
from shards.manifest import WEIGHTS
from shards.store import PackageStore


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from agent.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, encoding="utf-8", timeout=300)


@pytest.fixture
def package(tiny_package: Path, tmp_path: Path) -> Path:
    """A package of the test's own."""
    return shutil.copytree(tiny_package, tmp_path / "package")


def test_exports_and_says_what_it_made(tiny_chat_package: Path, tmp_path: Path) -> None:
    source, target = ir_of(tiny_chat_package, tmp_path / "source"), tmp_path / "tiny"
    made = run("export", source, "-o", target, "--split", "2,2", "--no-verify", "--json")
    assert (made.returncode, made.stderr) == (0, "")
    result = json.loads(made.stdout)
    assert result["facts"]["layers"] == 4
    assert result["verification"] is None
    assert result["stages"] == [str(tmp_path / "tiny-stage-0"), str(tmp_path / "tiny-stage-1")]
    assert result["package_id"] == PackageStore(target).manifest.package_id
    again = run("export", source, "-o", target, "--no-verify")
    assert (again.returncode, again.stdout) == (1, "")
    assert "package here already" in again.stderr
    assert "--force" in again.stderr
    table = run("export", source, "-o", target, "--no-verify", "--force")
    assert table.returncode == 0
    assert "no (--no-verify)" in table.stdout


@pytest.mark.parametrize(
    "arguments", [(), ("source",), ("source", "-o", "x", "--split", "1,x"), ("a", "-o", "b", "--weights", "int3")]
)
def test_usage_errors_exit_with_2(arguments: tuple[str, ...]) -> None:
    ran = run("export", *arguments)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr


def test_an_error_is_one_message(tmp_path: Path) -> None:
    ran = run("export", tmp_path / "nowhere", "-o", tmp_path / "package")
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.startswith(f"error: {tmp_path / 'nowhere'}: there is no such folder or file")
    assert list(tmp_path.iterdir()) == []
    as_json = run("export", tmp_path / "nowhere", "-o", tmp_path / "package", "--json")
    assert json.loads(as_json.stdout)["error"]["where"] == str(tmp_path / "nowhere")


def test_help_has_an_example() -> None:
    for command in ("export", "inspect"):
        assert f"Example: edge-agent {command}" in CliRunner().invoke(app, [command, "--help"]).output


def test_inspect_shows_facts_layers_and_splits(tiny_package: Path) -> None:
    shown = run("inspect", tiny_package)
    assert (shown.returncode, shown.stderr) == (0, "")
    for words in (
        "tiny-llama",
        "llama",
        "2 of 32",
        "each of layers 0-3",
        "final norm and head",
        "what a split would need",
    ):
        assert words in shown.stdout


def test_names_and_paths_are_text_and_no_markup(tiny_package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = manifests.read(tiny_package)
    source = {"llama.cpp backend": 'none. Run: pip install "edge-agent[llamacpp]"', "path": "a[/b]c"}
    facts = manifest.facts.model_copy(update={"name": "tiny[/red]"})
    manifest = manifest.model_copy(update={"source": source, "facts": facts})
    export._show(Export(Path("[bold]package"), manifest, (), None, None))
    inspect._show(manifest, {}, checked=False)
    shown = capsys.readouterr().out
    for words in ("edge-agent[llamacpp]", "a[/b]c", "tiny[/red] → [bold]package"):
        assert words in shown


def test_inspect_adds_up(tiny_package: Path) -> None:
    manifest = manifests.read(tiny_package)
    result = json.loads(run("inspect", tiny_package, "--json").stdout)
    assert list(result["splits"]) == ["1", "2", "3", "4"]
    for split in result["splits"].values():
        assert [stage["first_layer"] for stage in split[1:]] == [stage["end_layer"] for stage in split[:-1]]
        assert (split[0]["first_layer"], split[-1]["end_layer"]) == (0, 4)
        # four layers, keys and values, two heads of 32 numbers of two bytes
        assert sum(stage["kv_bytes_per_1000_tokens"] for stage in split) == 4 * 2 * 2 * 32 * 2 * 1000
    (whole,) = result["splits"]["1"]
    assert whole["weights_bytes"] == sum(end - start for start, end in manifest.spans.all())
    assert result["files"][WEIGHTS] >= whole["weights_bytes"]


def test_a_split_in_more_stages_than_layers_is_refused(tiny_package: Path) -> None:
    with pytest.raises(ConfigurationError, match="4 layers cannot be split into 5 stages"):
        needs(manifests.read(tiny_package), 5)


def test_check_finds_flipped_weights(package: Path) -> None:
    assert "all checked" in run("inspect", package, "--check").stdout
    data = bytearray((package / WEIGHTS).read_bytes())
    data[len(data) // 2] ^= 1
    (package / WEIGHTS).write_bytes(data)
    assert run("inspect", package).returncode == 0
    checked = run("inspect", package, "--check")
    assert checked.returncode == 1
    assert str(package / WEIGHTS) in checked.stderr
    assert "are not what the manifest says" in checked.stderr


def test_a_newer_format_is_refused_by_number(package: Path) -> None:
    path = package / manifests.MANIFEST
    raw = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**raw, "format": 7}), "utf-8")
    ran = run("inspect", package)
    assert ran.returncode == 1
    assert f"format 7, this edge-agent reads up to {manifests.FORMAT}" in ran.stderr
