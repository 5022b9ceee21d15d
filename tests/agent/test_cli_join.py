"""`edge-agent join` as a person runs it: a process, what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from ended import still_alive
from eventually import eventually
from signals import are_handled

from agent.cli import output
from agent.cli.join import picture, stage_line, summary
from agent.fleet.control.control_server import ControlServer, NodeEvent, NodeJoined, NodeLeft
from agent.fleet.node.node_status import Activity, NodeStatus, StageStatus
from agent.fleet.trust.door import Door
from agent.fleet.trust.identity import FleetIdentity
from agent.fleet.trust.members import Members
from agent.fleet.trust.token import encode

COMMAND = [sys.executable, "-c", "from agent.cli import main; main()", "join"]
SECONDS_TO_END = 5
HOST = "127.0.0.1"


class Fleet:
    """A head with a door, and what its nodes do."""

    def __init__(self, folder: Path) -> None:
        self.identity = FleetIdentity.load_or_create(folder)
        self.members = Members(folder, self.identity.keys.public)
        self.events: list[NodeEvent] = []
        self.control = ControlServer(
            self.identity.keys,
            may_enter=lambda key, _: self.members.is_member(key),
            is_member=self.members.is_member,
            fleet_name="home",
            events=self.events.append,
            host=HOST,
        )
        self.door = Door(self.identity, self.members, self.control.port, host=HOST, port=self.control.port + 1)
        self.head = f"{HOST}:{self.control.port}"
        self.token = encode(self.identity.keys.public, self.identity.joining.secret)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path / "head")
    yield fleet
    fleet.door.close()
    fleet.control.close()


@pytest.fixture
def user(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has joined nothing yet."""
    home = str(tmp_path / "home")
    folders = {"HOME": home, "LOCALAPPDATA": home, "XDG_CONFIG_HOME": f"{home}/config", "XDG_CACHE_HOME": f"{home}/c"}
    return os.environ | folders


@contextmanager
def joining(user: dict[str, str], *options: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*COMMAND, *options],
        env=user,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_until(process: subprocess.Popen[str], word: str) -> list[str]:
    """What it prints up to a line with a word in it."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or word not in lines[-1]:
        line = process.stdout.readline()
        assert line, (lines, process.communicate())
        lines.append(line)
    return lines


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Ctrl-C; the exit code, and what is said about it. All its processes end in time."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS_TO_END)
    assert not still_alive(family, 1)
    return process.returncode, errors


def test_join_with_a_token_and_leave(fleet: Fleet, user: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(fleet.token, "utf-8")
    file.chmod(0o600)
    with joining(user, "--head", fleet.head, "--token-file", str(file), "--name", "desk", "--json") as process:
        lines = lines_until(process, '"joined"')
        assert fleet.token not in " ".join(psutil.Process(process.pid).cmdline())
        code, errors = end(process)
    told = [json.loads(line) for line in lines]
    assert (told[-1]["name"], told[-1]["fleet"], told[-1]["head"]) == ("desk", "home", fleet.head)
    assert fleet.token not in "".join(lines)
    assert (code, errors) == (130, "")
    came, left = (event for event in fleet.events if isinstance(event, NodeJoined | NodeLeft))
    assert isinstance(came, NodeJoined)
    assert came.hello.hardware.devices[0].name == "CPU"
    assert isinstance(left, NodeLeft)
    assert left.why == "its agent was ended"
    # the second time it needs nothing
    with joining(user, "--head", fleet.head) as process:
        assert "is in the fleet home" in lines_until(process, "is in the fleet")[-1]
        assert end(process)[0] == 130


def test_wait_for_approval(fleet: Fleet, user: dict[str, str]) -> None:
    with joining(user, "--head", fleet.head, "--fleet-key", fleet.identity.keys.public) as process:
        line = lines_until(process, "edge-agent approve")[-1]
        assert re.fullmatch(r"[A-Z2-7]{4}-[A-Z2-7]{4}", line.split()[-1])
        code, errors = end(process)
    assert (code, errors) == (130, "")
    assert not fleet.events


@pytest.mark.parametrize("delay", [0.5, 1.5])
def test_ctrl_c_while_looking(user: dict[str, str], delay: float) -> None:
    with joining(user, "--fleet", "none") as process:
        assert eventually(lambda: are_handled(process.pid))
        time.sleep(delay)
        code, errors = end(process)
    assert code == 130
    assert "Traceback" not in errors


def test_a_token_from_a_pipe_that_is_wrong(fleet: Fleet, user: dict[str, str]) -> None:
    wrong = fleet.token[:-1] + ("a" if fleet.token[-1] != "a" else "b")
    with joining(user, "--head", fleet.head, "--token-file", "-", "--json") as process:
        said, errors = process.communicate(wrong, timeout=60)
    error = json.loads(said)["error"]
    assert (process.returncode, errors) == (1, "")
    assert "token" in error["where"]
    assert fleet.token[8:] not in said


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--head", "pc:x"], 1, ["pc:x", "HOST:PORT"]),
        (["--head", "no.such.host.invalid", "--fleet-key", "1" * 40], 1, ["no.such.host.invalid"]),
        (["--token-file", "nowhere"], 1, ["nowhere"]),
        (["--token"], 1, ["token"]),
        (["--fleet-key", "short"], 1, ["--fleet-key", "40"]),
        (["--fleet-key", "\u00e9" * 40], 1, ["--fleet-key", "no key"]),
        (["--memory", "lots"], 1, ["--memory", "8GB"]),
        (["--cores", "0,99999"], 1, ["--cores", "0,99999"]),
        (["--cores", "x"], 1, ["--cores"]),
        (["--threads", "0"], 2, ["--threads"]),
        (["--engine", "llamacpp", "--device", "GPU"], 1, ["--engine", "runs on the CPU, not on GPU"]),
        (["--engine", "abacus"], 2, ["--engine", "abacus"]),
        (["--frobnicate"], 2, ["--frobnicate"]),
    ],
)
def test_errors_help(user: dict[str, str], options: list[str], code: int, words: list[str]) -> None:
    done = subprocess.run(
        [*COMMAND, *options], env=user, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=False
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


STATUS = NodeStatus(
    state="joined",
    fleet="home",
    name="desk",
    head="192.0.2.1:8115",
    measuring=Activity(what="measuring layers", done=1, total=4),
    stages=(
        StageStatus(
            model="llama",
            first_layer=0,
            end_layer=16,
            activity=Activity(what="fetching, 101.3 MB/s", done=40e6, total=100e6),
        ),
    ),
)


def shown(status: NodeStatus) -> str:
    """The picture as text."""
    console = output.console()
    with console.capture() as capture:
        console.print(picture(status))
    return capture.get()


def test_the_picture_says_what_goes_on() -> None:
    text = shown(STATUS)
    for words in ("desk is in the fleet home", "llama, layers 0-15: fetching", "101.3 MB/s", "40 of 100 MB", "1", "━"):
        assert words in text
    assert "layers 0-15: fetching" in stage_line(STATUS.stages[0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "looking", "why": "nobody is there", "hint": "Start one."}, "nobody is there. Start one."),
        ({"state": "waiting", "code": "ABCD-EFGH"}, "edge-agent approve ABCD-EFGH"),
        ({"state": "out"}, "refused"),
    ],
)
def test_a_line_for_each_state(changes: dict[str, Any], words: str) -> None:
    status = NodeStatus(name="desk").model_copy(update=changes)
    assert words in summary(status)
    assert words.split()[0] in shown(status)
