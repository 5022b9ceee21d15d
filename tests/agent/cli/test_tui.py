"""`edge-agent chat`, `fleet` and `tui` as processes: terminals that are none, tables for pipes, and the browser."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agent.cli import tui
from agent.cli.state_tables import state_tables
from agent.look_around import look_around
from agent.started_head import HeadStarter
from shards.errors import ConfigurationError, EdgeAgentError, PackageError, StageError
from tui.heads import FoundHead

PROJECT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "agent"]
NOWHERE = "http://127.0.0.1:1"


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
        cwd=PROJECT,
        env=os.environ | (env or {}),
    )


@contextmanager
def telling(state: dict[str, Any]) -> Iterator[str]:
    """A head that says of itself what a test tells it to."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = json.dumps(state).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def state(**changes: Any) -> dict[str, Any]:
    """A PC without a fleet, with one answer in the works."""
    request = {
        "id": "chatcmpl-1",
        "client": "[red]curl[/red]\x1b[2J",
        "state": "decode",
        "prompt_tokens": 12,
        "completion_tokens": 3,
        "max_tokens": 64,
        "age_seconds": 1.5,
        "tokens_per_second": None,
    }
    stage = {
        "layers": [0, 30],
        "device": "CPU",
        "engine": "openvino-paged",
        "microseconds": {"compute": 1500, "wait": 0},
    }
    chain = {
        "stages": [stage],
        "requests": [request],
        "scheduler": {"running": 1, "waiting": 0},
        "speculation": None,
        "failure": None,
    }
    return {"model": {"name": "smol", "layers": 30, "context_length": 64}, "chains": [chain], "parked": 2, **changes}


@pytest.mark.parametrize("command", ["chat", "fleet", "tui"])
def test_without_a_terminal_it_says_what_to_use_instead(command: str) -> None:
    done = run(command)
    assert (done.returncode, done.stdout) == (1, "")
    for words in ("terminal", "fleet --once", "edge-agent ask"):
        assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="pseudo terminals are POSIX's")
def test_a_dumb_terminal_is_told_why() -> None:
    import pty

    leader, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [*COMMAND, "chat"],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            timeout=60,
            check=False,
            cwd=PROJECT,
            env=os.environ | {"TERM": "dumb"},
        )
        said = os.read(leader, 65536).decode()
    finally:
        os.close(leader)
        os.close(terminal)
    assert done.returncode == 1
    assert "TERM=dumb" in said
    assert "\x1b[?1049h" not in said


def test_once_prints_tables() -> None:
    with telling(state()) as url:
        done = run("fleet", "--once", "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    for words in ("smol", "0-29", "1.50 ms", "chatcmpl-1", "[red]curl[/red]", "3 of 64", "2 wait for a chain"):
        assert words in done.stdout


@pytest.mark.parametrize("options", [("--once", "--json"), ("--json",)])
def test_it_prints_json(options: tuple[str, ...]) -> None:
    with telling(state()) as url:
        done = run("fleet", *options, "--url", url)
    assert (done.returncode, json.loads(done.stdout)) == (0, state())


def test_once_without_a_head() -> None:
    done = run("fleet", "--once", "--url", NOWHERE)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no server answers" in done.stderr


def test_a_key_is_not_read_from_a_file_that_others_can_read(tmp_path: Path) -> None:
    done = run("fleet", "--once", "--url", NOWHERE, "--api-key-file", str(tmp_path / "none"))
    assert done.returncode == 1
    assert "API key" in done.stderr


def test_events_and_requests_of_a_fleet() -> None:
    events = [{"time": 1.7e9 + number, "what": f"event {number} [b]\x1b[2J"} for number in range(30)]
    titles = [str(table.title) for table in state_tables(state(events=events))]
    assert [title for title in titles if "event" in title] == ["the last 20 events"]
    assert "requests" in titles


def test_a_screen_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "import agent.cli.tui, agent.look_around, agent.started_head, agent.client, agent.keys\n"
        "from tui.app import EdgeAgentApp\n"
        "async def main():\n"
        f"    app = EdgeAgentApp(Path({str(tmp_path)!r}), {NOWHERE!r})\n"
        "    async with app.run_test() as pilot:\n"
        "        await pilot.press('f3', 'f1', 'escape', 'f2')\n"
        "asyncio.run(main())\n"
        "print('LOADED', *{name.partition('.')[0] for name in sys.modules})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", cwd=PROJECT, timeout=100)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert {"textual", "httpx"} <= loaded
    heavy = {"openvino", "openvino_genai", "numpy", "zmq", "torch", "transformers", "fastapi", "uvicorn", "zeroconf"}
    assert not loaded & heavy


def test_what_is_no_package_is_not_started(tmp_path: Path) -> None:
    starter = HeadStarter(tmp_path / "head.log")
    with pytest.raises(PackageError):
        starter.start(tmp_path)
    assert not (tmp_path / "head.log").exists()


def test_packages_at_hand(smollm2_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(smollm2_package.parent)
    assert smollm2_package in HeadStarter(tmp_path / "head.log").packages()


def test_a_head_is_started_says_what_it_does_and_ends(tiny_chat_package: Path, tmp_path: Path) -> None:
    # apart from this user's own head, of which there can be one only
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "import httpx\n"
        "from agent.started_head import HeadStarter\n"
        "head = HeadStarter(Path(sys.argv[1]) / 'head.log').start(Path(sys.argv[2]))\n"
        "try:\n"
        "    while head.is_running():\n"
        "        try:\n"
        "            if httpx.get(head.url + '/fleet', trust_env=False).json()['chains']:\n"
        "                break\n"
        "        except httpx.HTTPError:\n"
        "            pass\n"
        "        time.sleep(0.2)\n"
        "    print(head.is_running(), os.getpgid(head.process) == head.process)\n"
        "finally:\n"
        "    head.stop()\n"
        "print(head.is_running())\n"
        "print(*head.log(), sep='\\n')\n"
    )
    folders = {name: str(tmp_path / name) for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "LOCALAPPDATA")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(tiny_chat_package)],
        capture_output=True,
        encoding="utf-8",
        timeout=240,
        cwd=PROJECT,
        env=os.environ | folders,
    )
    assert done.returncode == 0, done.stderr
    alive, ended, *log = done.stdout.splitlines()
    assert (alive, ended) == ("True True", "False"), done.stdout
    assert any("edge-agent join" in line for line in log)
    assert not any("Traceback" in line for line in log)


def test_looking_around_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CONFIG_HOME", "LOCALAPPDATA", "HOME"):  # without a head of this user's
        monkeypatch.setenv(name, str(tmp_path))
    assert look_around(0) == ()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(StageError, match="cannot be looked for"):
        look_around(0)


@contextmanager
def in_terminal(*arguments: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[str], str], int]]:
    """A command on a terminal of its own: process, a reader until some words come, and the terminal's other end."""
    import fcntl
    import pty
    import struct
    import termios

    leader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=PROJECT,
        env=os.environ | {"TERM": "xterm-256color", "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)},
        start_new_session=True,
    )
    os.close(terminal)
    said = ""

    def until(words: str) -> str:
        nonlocal said
        while words not in said:
            said += os.read(leader, 65536).decode("utf-8", "replace")
        return said

    try:
        yield process, until, leader
    finally:
        process.kill()
        process.wait()
        with suppress(OSError):
            os.close(leader)


@pytest.mark.skipif(os.name == "nt", reason="pseudo terminals are POSIX's")
@pytest.mark.parametrize("command", ["chat", "fleet", "tui"])
def test_on_a_terminal_it_draws_and_leaves_no_trace(command: str, tmp_path: Path) -> None:
    with telling(state()) as url, in_terminal(command, "--url", url, folder=tmp_path) as (process, until, leader):
        until("connected")
        os.write(leader, b"\x11")  # ctrl+q
        said = until("\x1b[?1049l")
        assert process.wait(60) == 0
    assert "Traceback" not in said


@pytest.mark.skipif(os.name == "nt", reason="pseudo terminals are POSIX's")
def test_it_ends_with_its_terminal(tmp_path: Path) -> None:
    with telling(state()) as url, in_terminal("chat", "--url", url, folder=tmp_path) as (process, until, leader):
        until("connected")
        os.close(leader)
        assert process.wait(60) != 0


@pytest.mark.skipif(os.name == "nt", reason="pseudo terminals are POSIX's")
def test_a_signal_ends_it_and_leaves_no_trace(tmp_path: Path) -> None:
    with telling(state()) as url, in_terminal("chat", "--url", url, folder=tmp_path) as (process, until, _):
        until("connected")
        process.send_signal(signal.SIGTERM)
        said = until("\x1b[?1049l")
        assert process.wait(60) == 143
    assert "Traceback" not in said


def test_the_usual_address_is_tried_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found: list[FoundHead] = []
    monkeypatch.setattr("agent.look_around.look_around", lambda: tuple(found))
    with telling(state()) as url:
        monkeypatch.setattr(tui, "DEFAULT_URL", url)
        assert tui._find_url() == url
    monkeypatch.setattr(tui, "DEFAULT_URL", NOWHERE)
    with pytest.raises(EdgeAgentError, match="serve PACKAGE"):
        tui._find_url()
    with telling(state()) as url:
        found.append(FoundHead("home", urls=("http://127.0.0.1:2", url)))
        assert tui._find_url() == url
        assert url in capsys.readouterr().err
        found.append(FoundHead("other", urls=("http://pc-3:8114",)))
        with pytest.raises(ConfigurationError, match="2 heads"):
            tui._find_url()


def test_once_takes_addresses_as_the_screen_does() -> None:
    with telling(state()) as url:
        assert run("fleet", "--once", "--url", url.removeprefix("http://")).returncode == 0
    done = run("fleet", "--once", "--url", "http://[::1")
    assert done.returncode == 1
    assert "this is not an address" in done.stderr
    assert "Traceback" not in done.stderr
