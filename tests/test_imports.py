"""Who may import whom, and what the command line may not load before it needs it."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
ALLOWED: dict[str, set[str]] = {
    "shards": set(),
    "pipeline": {"shards"},
    "exporters": {"shards"},
    "agent": {"exporters", "shards", "pipeline", "tui"},
    "tui": {"shards"},  # its errors alone, see below
}
HEAVY = {"openvino", "openvino_genai", "openvino_tokenizers", "torch", "transformers", "optimum", "nncf", "numpy",
         "fastapi", "uvicorn", "httpx", "textual", "zmq", "jinja2"}  # fmt: skip


@functools.cache
def nodes_of(source: Path) -> tuple[ast.AST, ...]:
    """All of a file's syntax tree."""
    return tuple(ast.walk(ast.parse(source.read_text("utf-8"), str(source))))


def imported_by(source: Path) -> set[tuple[str, int]]:
    """Top-level names a file imports, wherever in it, with the line."""
    found: set[tuple[str, int]] = set()
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            found |= {(alias.name.partition(".")[0], node.lineno) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}:{node.lineno}: imports are absolute"
            found.add(((node.module or "").partition(".")[0], node.lineno))
    return found


@pytest.mark.parametrize("package", ALLOWED)
def test_arrows(package: str) -> None:
    sources = list((PROJECT / package).rglob("*.py"))
    assert sources
    forbidden = set(ALLOWED) - ALLOWED[package] - {package} | {"scripts", "tests"}
    wrong = [
        f"{source.relative_to(PROJECT)}:{line} imports {name}"
        for source in sources
        for name, line in imported_by(source)
        if name in forbidden
    ]
    assert not wrong


def test_the_screen_has_of_the_rest_the_errors_alone() -> None:
    for source in (PROJECT / "tui").rglob("*.py"):
        of_ours = {node.module for node in nodes_of(source) if isinstance(node, ast.ImportFrom) and node.module}
        assert {name for name in of_ours if name.startswith("shards")} <= {"shards.errors"}, source


def test_the_project_does_not_unpickle_or_evaluate() -> None:
    for package in ALLOWED:
        for source in (PROJECT / package).rglob("*.py"):
            names = {name for name, _ in imported_by(source)}
            assert not names & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}, source
            calls = {
                node.func.id
                for node in nodes_of(source)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            assert not calls & {"eval", "exec"}, source


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["serve", "--help"], ["demo", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('LOADED', *{name.partition('.')[0] for name in sys.modules}))\n"
        f"sys.argv = ['edge-agent', *{arguments!r}]\n"
        "from agent.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", cwd=PROJECT, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert "typer" in loaded
    assert not loaded & HEAVY


def test_no_two_test_modules_have_one_name() -> None:
    """They are imported by it alone: the second would not be collected."""
    names = Counter(path.name for path in (PROJECT / "tests").rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []
