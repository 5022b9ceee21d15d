"""The commands as a person runs them: processes, exit codes, what they print, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from ended import still_alive
from eventually import eventually
from signals import are_handled
from typer.testing import CliRunner

from agent.cli.app import app

COMMAND = [sys.executable, "-c", "from agent.cli import main; main()"]
SECONDS_TO_END = 5


def run(*arguments: str, stdin: str = "", timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, encoding="utf-8", timeout=timeout, check=False
    )


@contextmanager
def serving(package: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server process that is ready, and what it said."""
    command = [
        *COMMAND,
        "serve",
        str(package),
        "--port",
        "0",
        "--mode",
        "exact",
        "--json",
        "--local-stages",
        "1",
        *options,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            said = ""
            while not said.endswith("}\n"):
                line = process.stdout.readline()
                assert line, process.communicate()
                said += line
            yield process, json.loads(said)
        finally:
            process.kill()


def end(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    """Send a signal; the exit code and what it printed to stderr. It and all of its processes end in time."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    try:
        _, errors = process.communicate(timeout=SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()  # else it would be waited for
        raise
    assert not still_alive(family, 1)
    return process.returncode, errors


def test_ask_a_running_server(smollm2_package: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret\n", "utf-8")
    key.chmod(0o600)
    with serving(smollm2_package, "--local-stages", "2", "--api-key-file", str(key)) as (process, said):
        family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
        assert len(family) >= 3
        for pid in family:
            assert "s3cret" not in " ".join(psutil.Process(pid).cmdline())
        url = ["--url", said["url"]]
        refused = run("ask", "Hello", *url)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "--api-key-file" in refused.stderr
        with_key = [*url, "--api-key-file", str(key)]
        answer = run("ask", "What is the capital of France?", *with_key)
        assert (answer.returncode, answer.stderr) == (0, "")
        assert "Paris" in answer.stdout
        told = json.loads(run("ask", "-", "--json", "--max-tokens", "3", *with_key, stdin="Count to ten.").stdout)
        assert told["finish_reason"] == "length"
        assert told["usage"]["completion_tokens"] == 3
        code, errors = end(process, signal.SIGINT)
    assert (code, errors) == (130, "")


def test_the_kv_cache_of_a_server_has_room_for_its_users(tiny_chat_package: Path) -> None:
    options = ("--users", "3", "--context", "1000", "--target-tbt", "0", "--max-waiting", "9")
    with serving(tiny_chat_package, *options) as (_, said):
        assert (said["kv_tokens"], said["context"]) == (3 * 1024, 3 * 1024)
        chain = httpx.get(f"{said['url']}/fleet", timeout=60, trust_env=False).json()["chains"][0]
        assert chain["scheduler"]["kv_total"] == 3 * 1024
        assert chain["stages"][0]["properties"]["KV_CACHE_PRECISION"] == "f32"
    with serving(tiny_chat_package, "--kv-tokens", "640") as (_, said):
        assert (said["kv_tokens"], said["context"]) == (640, 640)


def test_ctrl_c_in_mid_answer(smollm2_package: Path) -> None:
    with serving(smollm2_package, "--local-stages", "2") as (process, said):
        command = [*COMMAND, "ask", "Write a very long story.", "--url", said["url"]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:
            assert asking.stdout is not None
            assert asking.stdout.read(5)
            code, errors = end(process, signal.SIGTERM)
            assert (code, errors) == (143, "")
            _, told = asking.communicate(timeout=60)
    assert asking.returncode == 1
    assert "shutting down" in told
    assert "Traceback" not in told


def test_a_server_whose_stage_has_died_says_so_and_ends(tiny_chat_package: Path) -> None:
    with serving(tiny_chat_package, "--local-stages", "2") as (process, _):
        family = psutil.Process(process.pid).children(recursive=True)
        family[0].kill()
        told, _ = process.communicate(timeout=60)
        assert not still_alive(family, 1)
    assert process.returncode == 1
    error = json.loads(told)["error"]
    assert error["type"] == "StageError"
    assert "the process ended" in error["what"]


def test_ctrl_c_inside_native_code_that_makes_another_error_of_it() -> None:
    program = (
        "import signal, agent.cli, agent.cli.app as commands\n"
        "def command():\n"
        "    try:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n"
        "        raise ImportError('initialization failed') from None\n"
        "commands.app = command\n"
        "agent.cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("delay", [0.3, 1.0, 2.5])
def test_ctrl_c_while_loading(smollm2_package: Path, delay: float) -> None:
    command = [*COMMAND, "serve", str(smollm2_package), "--port", "0", "--local-stages", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert eventually(lambda: are_handled(process.pid))
        time.sleep(delay)
        code, errors = end(process, signal.SIGINT)
    assert code == 130
    assert "Traceback" not in errors


@pytest.mark.parametrize("delay", [1.0, 5.0])
def test_ctrl_c_while_exporting(smollm2_gguf: Path, tmp_path: Path, delay: float) -> None:
    command = [*COMMAND, "export", str(smollm2_gguf), "-o", str(tmp_path / "package"), "--weights", "keep"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert eventually(lambda: are_handled(process.pid))
        time.sleep(delay)
        code, errors = end(process, signal.SIGINT)
    assert code == 130
    assert "Traceback" not in errors
    assert not list(tmp_path.iterdir())


def test_ask_with_a_package_needs_no_server(smollm2_package: Path) -> None:
    answer = run("ask", "What is the capital of France?", "--package", str(smollm2_package), "--max-tokens", "20")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "Paris" in answer.stdout


def test_bytes_that_are_no_text_do_no_harm(tiny_chat_package: Path) -> None:
    with serving(tiny_chat_package) as (_, said):
        command = [*COMMAND, "ask", "--url", said["url"], "--max-tokens", "2", "--json"]
        for arguments, stdin in ((["-"], b"\xff\xfeHi"), (["Hi \udcff"], b"")):
            done = subprocess.run([*command, *arguments], input=stdin, capture_output=True, check=False)
            assert (done.returncode, done.stderr) == (0, b"")
            assert json.loads(done.stdout)["usage"]["completion_tokens"] == 2


def test_a_terminal_that_lacks_characters_gets_others(smollm2_package: Path) -> None:
    plain = os.environ | {"PYTHONIOENCODING": "ascii"}
    shown = subprocess.run([*COMMAND, "inspect", str(smollm2_package)], capture_output=True, env=plain, check=False)
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert shown.stdout.isascii()
    assert b"49,152" in shown.stdout
    refused = subprocess.run([*COMMAND, "inspect", "földer"], capture_output=True, env=plain, check=False)
    assert refused.returncode == 1
    assert b"f?lder: there is no manifest here" in refused.stderr


def test_the_demo_ends_in_paris() -> None:
    done = run("demo", "--prompt", "What is the capital of France?", "--json", timeout=500)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["text"].strip().rstrip(".").endswith("Paris")
    times = told["milliseconds_per_token"]
    assert list(times) == ["stage 0", "stage 1", "wire", "head"]
    assert times["stage 0"] > 0 and times["stage 1"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ask", "Hi", "--url", "http://127.0.0.1:1"], 1, ["no server answers", "edge-agent serve"]),
        (["ask", "Hi", "--url", "not an address"], 1, ["not an address"]),
        (["ask", "Hi", "--package", "nowhere"], 1, ["nowhere", "edge-agent export"]),
        (["serve", "nowhere"], 1, ["nowhere", "edge-agent export"]),
        (["serve", "nowhere", "--host", "no.such.host.invalid"], 1, ["--host"]),
        (["serve", "nowhere", "--host", "192.0.2.7"], 1, ["--host", "192.0.2.7 is not an address of this PC"]),
        (["serve", "nowhere", "--host", "127.0.0.1", "--api-key-file", "no-key"], 1, ["no-key"]),
        (["serve"], 2, ["PACKAGE"]),
        (["serve", "nowhere", "--local-stages", "0"], 2, ["--local-stages"]),
        (["serve", "nowhere", "--local-stages", "1"], 1, ["nowhere", "edge-agent export"]),
        (["serve", "nowhere", "--local-stages", "1", "--min-nodes", "3"], 1, ["--min-nodes", "is for a fleet"]),
        (["serve", "nowhere", "--local-stages", "1", "--no-replicas"], 1, ["--replicas", "is for a fleet"]),
        (["serve", "nowhere", "--kv-tokens", "512"], 1, ["--kv-tokens", "one PC alone", "--local-stages"]),
        (["serve", "nowhere", "--kv-precision", "u4"], 2, ["--kv-precision", "u8", "f16", "f32"]),
        (["serve", "nowhere", "--mode", "exact", "--kv-precision", "u8"], 1, ["kv_precision", "f32, not in u8"]),
        (["serve", "nowhere", "--target-tbt", "-1"], 2, ["--target-tbt"]),
        (["serve", "nowhere", "--max-waiting", "0"], 2, ["--max-waiting"]),
        (["demo", "--stages", "99"], 1, ["30"]),
        (["frobnicate"], 2, ["frobnicate"]),
    ],
)
def test_errors_help(arguments: list[str], code: int, words: list[str], tmp_path: Path) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_errors_as_json() -> None:
    done = run("serve", "nowhere", "--json")
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert error["type"] == "PackageError"
    assert error["where"].endswith("nowhere")
    assert "edge-agent export" in error["hint"]
    assert os.sep not in done.stderr


def test_help_shows_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    for command in ("demo", "export", "inspect", "serve", "ask", "bench"):
        assert command in done.stdout
        assert "Example" in CliRunner().invoke(app, [command, "--help"]).output or command == "bench"
