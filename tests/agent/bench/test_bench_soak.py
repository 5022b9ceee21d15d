"""A soak of a tiny model: a server process, two stage processes, HTTP clients that come, leave and are cancelled."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from packages import link, package_of
from typer.testing import CliRunner
from zoo import VOCABULARY, family_ir

from agent.bench import soak
from agent.bench.footprint import Footprint
from agent.bench.soak_load import asks
from agent.cli.bench import app
from shards.errors import EdgeAgentError
from shards.progress import silent


@pytest.fixture
def package(smollm2_package: Path, tmp_path: Path) -> Path:
    """A tiny model with a tokenizer, if not its own: prompts come as token ids."""
    package = package_of(family_ir("llama"), tmp_path / "tiny")
    (package / "tokenizer").mkdir()
    for file in (smollm2_package / "tokenizer").iterdir():
        link(file, package / "tokenizer" / file.name)
    return package


def test_nothing_is_left_when_all_have_had_their_answers_or_gone(package: Path) -> None:
    report = soak.run(package, soak.SoakEffort(requests=120, warm_up=120), silent)
    assert report.ok, [target for target in report.targets if not target.ok]
    ends = report.settings["ends"]
    assert min(ends[how] for how in ("whole", "streamed", "left before the first token", "left in mid-answer")) > 1
    assert ends["cancelled by the owner"] > 0
    assert report.settings["scheduler"]["evicted_tokens"] > 0
    assert [row["process"] for row in report.results] == ["head", "stage 1", "stage 2"]


HELD = 50_000_000
"""Bytes that the process holds for a while."""

HOLDER = """
import socket, subprocess, sys, threading
go_on = threading.Event()
thread = threading.Thread(target=go_on.wait)
print("before", flush=True)
input()
thread.start()
with socket.create_server(("127.0.0.1", 0)), subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as child:
    held = b"x" * int(sys.argv[1])
    print("more", flush=True)
    input()
    child.communicate(b"\\n")
go_on.set()
thread.join()
print("after", flush=True)
input()
"""


def test_a_footprint_shows_what_a_process_takes_and_gives_back() -> None:
    looks = []  # not at this process, where something of an earlier test may be ending
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(HELD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        for moment in ("before", "more", "after"):
            assert holder.stdout.readline() == f"{moment}\n"
            looks.append(Footprint.of(holder.pid))
            holder.stdin.write("\n")
            holder.stdin.flush()
    before, more, after = looks
    assert (more.threads, more.children) == (before.threads + 1, before.children + 1)
    assert more.sockets > before.sockets
    assert more.memory - before.memory > 0.9 * HELD
    assert (after.sockets, after.files, after.children) == (before.sockets, before.files, before.children)


def test_the_load_has_all_kinds_and_repeats_itself() -> None:
    wanted = list(islice(asks(VOCABULARY), 400))
    assert wanted == list(islice(asks(VOCABULARY), 400))
    assert len({ask.manner for ask in wanted}) == 5
    assert len({ask.client for ask in wanted}) > 3
    assert {ask.is_batch for ask in wanted} == {True, False}
    beginnings = [ask.prompt[:32] for ask in wanted if len(ask.prompt) > 32]
    assert len(set(beginnings)) < 0.8 * len(beginnings)
    assert max(max(ask.prompt) for ask in wanted) < VOCABULARY


def test_a_server_that_cannot_start_is_said_to(tmp_path: Path) -> None:
    with pytest.raises(EdgeAgentError, match="manifest"):
        soak.run(tmp_path, soak.QUICK, silent)


def test_the_command_has_an_example() -> None:
    assert "edge-agent bench soak --requests" in CliRunner().invoke(app, ["soak", "--help"]).output
