from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.control import Connect, Start, Stop, ToStage, line
from pipeline.link import KeyPair, Peer
from pipeline.wire import Limits
from shards.runtime import StageConfig


class Process:
    """A stage process, driven by hand."""

    def __init__(self) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "pipeline.stage_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        assert self.popen.stdin and self.popen.stdout
        self.stdin, self.stdout = self.popen.stdin, self.popen.stdout

    def tell(self, message: ToStage) -> None:
        self.stdin.write(line(message))
        self.stdin.flush()

    def hear(self, kind: str) -> dict[str, Any]:
        """The next message of a kind; only progress may come before it."""
        while True:
            message: dict[str, Any] = json.loads(self.stdout.readline())
            if message["kind"] == kind:
                return message
            assert message["kind"] == "progress", message

    def end(self) -> int:
        return self.popen.wait(60)


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    yield process
    process.popen.kill()
    with process.popen:  # closes the pipes
        pass


def config(package: Path, changes: dict[str, Any] = {}) -> StageConfig:  # noqa: B006 (not changed)
    values = {
        "package": str(package),
        "first_layer": 0,
        "end_layer": 4,
        "mode": "exact",
        "threads": 1,
        "kv_tokens": 256,
    }
    return StageConfig.model_validate(values | changes)


def connect(facts: dict[str, Any]) -> Connect:
    limits = Limits(
        epoch=0,
        payload="tokens",
        hidden_size=facts["hidden_size"],
        vocabulary=facts["vocabulary"],
        kv_tokens=facts["kv_tokens"],
        max_rows=64,
        max_sequences=8,
        max_operations=64,
    )
    nobody = Peer(host="127.0.0.1", port=9, public=KeyPair.new().public)
    return Connect(
        index=0,
        keys=KeyPair.new(),
        interface="127.0.0.1",
        welcome=KeyPair.new().public,
        next=nobody,
        limits=limits,
        sends="f32",
    )


def test_from_start_to_stop(process: Process, tiny_package: Path) -> None:
    process.tell(Start(config=config(tiny_package)))
    facts = process.hear("ready")["facts"]
    assert (facts["first_layer"], facts["end_layer"], facts["depth"]) == (0, 4, 4)
    assert facts["kv_tokens"] == 256
    process.tell(connect(facts))
    assert process.hear("bound")["port"] > 0
    process.tell(Stop())
    assert process.end() == 0
    assert process.stdout.read() == ""


def test_stop_before_anything(process: Process) -> None:
    process.tell(Stop())
    assert process.end() == 0


@pytest.mark.parametrize("when", ["at once", "loading", "ready", "working"])
def test_it_ends_when_its_agent_is_gone(process: Process, tiny_package: Path, when: str) -> None:
    if when != "at once":
        process.tell(Start(config=config(tiny_package)))
        message = process.hear("progress" if when == "loading" else "ready")
        if when == "working":
            process.tell(connect(message["facts"]))
            process.hear("bound")
    process.stdin.close()
    assert process.end() == 1


def test_it_leaves_ctrl_c_to_its_agent(process: Process, tiny_package: Path) -> None:
    process.tell(Start(config=config(tiny_package)))
    process.hear("ready")
    if os.name == "posix":
        process.popen.send_signal(signal.SIGINT)
    process.tell(Stop())
    assert process.end() == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"end_layer": 9}, "9"),
        ({"device": "ABACUS"}, "ABACUS"),
        ({"package": Path("nowhere at all")}, "nowhere at all"),
    ],
)
def test_what_cannot_be_loaded_is_said(
    process: Process, tiny_package: Path, changes: dict[str, Any], said: str
) -> None:
    process.tell(Start(config=config(tiny_package, changes)))
    failed = process.hear("failed")
    assert said in f"{failed['where']} {failed['what']}"
    assert process.end() == 1
    assert "Traceback" not in process.popen.stderr.read()  # type: ignore[union-attr]


def test_a_message_it_does_not_know_is_said(process: Process) -> None:
    process.stdin.write('{"kind": "dance"}\n')
    process.stdin.flush()
    assert "dance" in process.hear("failed")["what"]
    assert process.end() == 1


def test_what_libraries_print_does_not_reach_the_channel() -> None:
    script = """if True:
        import os
        from pipeline.control import Warned
        from pipeline.stage_process import Channel
        channel = Channel.over_stdout()
        print("from Python")
        os.write(1, b"from native code\\n")
        channel.tell(Warned(text="caf\\u00e9"))
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, encoding="utf-8", timeout=60)
    assert [json.loads(text) for text in done.stdout.splitlines()] == [{"kind": "warned", "text": "café"}]
    assert set(done.stderr.splitlines()) == {"from Python", "from native code"}
