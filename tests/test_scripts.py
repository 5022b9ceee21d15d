"""What the README's two commands do before and around the program."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`scripts/_environment.py` over an empty project, its commands recorded instead of run."""
    spec = importlib.util.spec_from_file_location("_environment", SCRIPTS / "_environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text("[project]\n", "utf-8")
    module.PROJECT, module.ENVIRONMENT, module._STAMP = tmp_path, tmp_path / ".venv", tmp_path / ".venv/stamp.json"
    module.commands, module.code = [], 0

    def run(command: list[object], cwd: Path | None = None) -> int:
        module.commands.append([str(part) for part in command])
        if "venv" in command:
            module.python().parent.mkdir(parents=True)
            module.python().write_text("", "utf-8")
        return module.code

    monkeypatch.setattr(module, "run", run)
    yield module


def installed(environment: ModuleType) -> list[str]:
    """What the recorded commands installed, and whether they made an environment first."""
    words = ["venv" if "venv" in command else command[-1] for command in environment.commands]
    environment.commands.clear()
    return words


def test_it_is_installed_once(environment: ModuleType) -> None:
    environment.prepare()
    assert installed(environment) == ["venv", str(environment.PROJECT)]
    environment.prepare()
    assert installed(environment) == []


def test_extras_are_added_and_kept(environment: ModuleType) -> None:
    environment.prepare()
    installed(environment)
    environment.prepare(("dev", "export"))
    assert installed(environment) == [f"{environment.PROJECT}[dev,export]"]
    environment.prepare()
    environment.prepare(("dev",))
    assert installed(environment) == []
    (environment.PROJECT / "pyproject.toml").write_text("[project]\nname = 'new'\n", "utf-8")
    environment.prepare()
    assert installed(environment) == [f"{environment.PROJECT}[dev,export]"]


def test_an_installation_that_broke_off_goes_on(environment: ModuleType) -> None:
    environment.prepare()
    installed(environment)
    (environment.PROJECT / "pyproject.toml").write_text("[project]\nname = 'new'\n", "utf-8")
    environment.code = 7
    with pytest.raises(SystemExit) as caught:
        environment.prepare()
    assert caught.value.code == 7
    installed(environment)
    environment.code = 0
    environment.prepare()
    assert installed(environment)[-1] == str(environment.PROJECT)


def test_another_python_makes_it_anew(environment: ModuleType) -> None:
    environment.prepare()
    installed(environment)
    stamp = json.loads(environment._STAMP.read_text("utf-8"))
    environment._STAMP.write_text(json.dumps({**stamp, "python": "3.11.0 (another)"}), "utf-8")
    environment.prepare()
    assert installed(environment) == ["venv", str(environment.PROJECT)]


def test_an_old_python_is_told(environment: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    with pytest.raises(SystemExit, match=r"3\.11 or newer"):
        environment.prepare()


@pytest.mark.parametrize("code", [0, 3, 130])
def test_exit_codes_pass_through(code: int) -> None:
    assert _run([sys.executable, "-c", f"raise SystemExit({code})"]).wait(60) == code


def test_signals_reach_the_command() -> None:
    child = (
        "import time\ntry:\n print('begun', flush=True)\n time.sleep(60)\n"
        "except KeyboardInterrupt:\n raise SystemExit(130)"
    )
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = _run([sys.executable, "-c", child])
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        if number == signal.SIGINT:  # as a terminal does: to all of the group
            os.killpg(process.pid, number)  # at once: one by one, the script may be past it before its own comes
        else:
            process.send_signal(number)
        assert process.wait(60) == code


def test_an_interruption_of_the_script_alone_ends_the_command_too() -> None:
    process = _run([sys.executable, "-c", "import time\nprint('begun', flush=True)\ntime.sleep(60)"])
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 143


def _run(command: list[str]) -> subprocess.Popen[str]:
    """`_environment.run` in a process of its own."""
    code = f"import sys, _environment; sys.exit(_environment.run({command!r}))"
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=SCRIPTS, stdout=subprocess.PIPE, encoding="utf-8", start_new_session=True
    )
