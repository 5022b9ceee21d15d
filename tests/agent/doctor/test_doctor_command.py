"""The command as a person runs it, in a home of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.doctor import examination

COMMAND = [sys.executable, "-c", "from agent.cli import main; main()", "doctor"]


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has nothing yet."""
    places = {"HOME": "", "XDG_CONFIG_HOME": "config", "XDG_CACHE_HOME": "cache", "LOCALAPPDATA": "local"}
    return os.environ | {name: str(tmp_path / place) for name, place in places.items()}


def run(home: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, encoding="utf-8", env=home, timeout=120, check=False
    )


def test_every_topic_is_told_as_json(home: dict[str, str], tmp_path: Path) -> None:
    done = run(home, "--json")
    assert done.stderr == ""
    checks = json.loads(done.stdout)
    for check in checks:
        assert list(check) == ["topic", "status", "what", "next_step"]
        assert check["status"] in ("ok", "warning", "fault")
        assert "this check failed" not in check["what"]
        assert "no result within" not in check["what"]
    topics = dict.fromkeys(check["topic"] for check in checks)
    assert list(topics) == [topic.name for topic in examination.topics(None)]
    assert any(check["what"].startswith("CPU: ") for check in checks)
    assert any(str(tmp_path) in check["what"] for check in checks if check["topic"] == "cache")
    assert done.returncode == int(any(check["status"] == "fault" for check in checks))


def test_a_fault_is_shown_and_ends_with_exit_code_1(home: dict[str, str], tmp_path: Path) -> None:
    for place in ("config", "local"):  # of Linux, and of Windows
        node = tmp_path / place / "edge-agent" / "node.json"
        node.parent.mkdir(parents=True)
        node.write_text('{"secret": "s3cret', "utf-8")
        node.chmod(0o600)
    done = run(home)
    assert (done.returncode, done.stderr) == (1, "")
    assert "fault: 0" not in done.stdout
    assert "damaged" in done.stdout
    assert "s3cret" not in done.stdout


def test_the_way_to_a_head(home: dict[str, str]) -> None:
    done = run(home, "--json", "--head", "127.0.0.1:1")
    last = json.loads(done.stdout)[-1]
    assert (done.returncode, last["topic"], last["status"]) == (1, "head", "fault")
    wrong = run(home, "--head", "host:port")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "--head: 'host:port' is not an address" in wrong.stderr


def test_help_has_an_example(home: dict[str, str]) -> None:
    done = run(home, "--help")
    assert done.returncode == 0
    assert "Example: edge-agent doctor" in done.stdout
