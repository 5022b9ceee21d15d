"""The screen in a browser: who gets the page, who can open its terminal, and what runs in it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agent import server
from agent.cli.browser import create_app, shell_line
from shards.errors import ConfigurationError

PROJECT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "agent"]
NOWHERE = "http://127.0.0.1:1"


def test_each_part_of_a_command_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ["/opt/my python/bin", "--url", "http://pc-2; rm -rf $HOME `x` 'y' \"z\"", "a\\"]
    if os.name != "nt":
        said = subprocess.run(
            f"{shell_line([sys.executable, '-c', 'import sys; print(sys.argv[1:])', *parts])}",
            shell=True,
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
        assert said.stdout.strip() == str(parts)
    monkeypatch.setattr(os, "name", "nt")
    assert shell_line(["C:\\a b\\python.exe", "x & y", "c:\\"]) == '"C:\\a b\\python.exe" "x & y" "c:\\\\"'
    for bad in ('a"b', "%PATH%", "a\nb"):
        with pytest.raises(ConfigurationError):
            shell_line(["python", bad])


SECRET = "s" * 43


@asynccontextmanager
async def page(line: str) -> AsyncIterator[str]:
    """The browser's server, and where it is."""
    bound = server.bind("127.0.0.1", 0)
    root = server.url_of(bound)
    runner = web.AppRunner(await create_app(line, root, SECRET))
    await runner.setup()
    await web.SockSite(runner, bound).start()
    processes: list[asyncio.subprocess.Process] = []
    create = asyncio.create_subprocess_shell

    async def create_and_note(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        processes.append(await create(*arguments, **options))
        return processes[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_shell", create_and_note)
        try:
            yield root
        finally:
            await runner.cleanup()
            for process in processes:  # textual-serve does not wait for them, and their pipes outlive no event loop
                await process.communicate()


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/SECRET/", {}, 200),
        ("/SECRET/static/js/textual.js", {}, 200),
        ("/", {}, 404),
        ("/ws", {}, 404),
        ("/wrong/", {}, 404),
        ("/SECRET/", {"Host": "evil.example:80"}, 404),
        ("/SECRET/", {"Host": "localhost"}, 404),
        ("/SECRET/", {"Origin": "http://evil.example"}, 403),
        ("/SECRET/", {"Origin": "null"}, 403),
    ],
)
async def test_who_gets_the_page(path: str, headers: dict[str, str], status: int) -> None:
    async with (
        page("false") as root,
        aiohttp.ClientSession(trust_env=False) as http,
        http.get(root + path.replace("SECRET", SECRET), headers=headers) as answer,
    ):
        assert answer.status == status
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert "googleapis" not in answer.headers["Content-Security-Policy"]
        if path.endswith("/SECRET/") and status == 200:
            assert f"ws://{root.removeprefix('http://')}/{SECRET}/ws" in await answer.text()


@pytest.mark.parametrize("origin", ["http://evil.example", "null", None, "http://127.0.0.1:1"])
async def test_a_page_from_elsewhere_cannot_open_the_terminal(origin: str | None, tmp_path: Path) -> None:
    line = shell_line(
        [sys.executable, "-c", "import pathlib, sys; pathlib.Path(sys.argv[1]).touch()", str(tmp_path / "ran")]
    )
    async with page(line) as root, aiohttp.ClientSession(trust_env=False) as http:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect(f"{root}/{SECRET}/ws", origin=origin)
    assert refused.value.status == 403
    await asyncio.sleep(0.1)
    assert not (tmp_path / "ran").exists()


async def test_the_screen_in_a_browser(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tui.app import EdgeAgentApp; "
        "EdgeAgentApp(Path(sys.argv[1]), sys.argv[2]).run()"
    )
    line = shell_line([sys.executable, "-c", code, str(tmp_path), NOWHERE])
    drawn = ""
    async with (
        page(line) as root,
        aiohttp.ClientSession(trust_env=False) as http,
        http.ws_connect(f"{root}/{SECRET}/ws?width=80&height=24", origin=root) as terminal,
    ):
        while "Fleet" not in drawn:
            message = await terminal.receive(60)
            assert message.type is not aiohttp.WSMsgType.CLOSED
            drawn += message.data.decode() if isinstance(message.data, bytes) else ""


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C to another process is POSIX's")
def test_the_browser_command_says_where_and_ends_on_ctrl_c() -> None:
    command = [*COMMAND, "tui", "--browser", "--url", NOWHERE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PROJECT) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{43}/\n", said)
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, rest) == (130, "")
    assert "Traceback" not in errors
