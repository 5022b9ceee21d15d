"""Conversions run in a process of their own; these tests end it in every way there is."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from ended import still_alive
from tiny_gguf import write_tiny_gguf

from exporters.sources import child
from shards.errors import ExportError


def start(folder: Path, progress: child.Progress, **arguments: str) -> dict[str, object]:
    path = folder / "tiny.gguf"
    if not path.exists():
        write_tiny_gguf(path)
    arguments = {"path": str(path), "workdir": str(folder), **arguments}
    return child.run("keep", arguments, folder / "log", progress, where=str(path), hint="Do this.")


def come_since(before: list[psutil.Process]) -> list[psutil.Process]:
    """The children of this process that are new: what other modules share lives on beside it."""
    return [process for process in psutil.Process().children() if process not in before]


def test_reports_each_phase_from_beginning_to_end(tmp_path: Path) -> None:
    reports: list[tuple[str, float, float]] = []
    answer = start(tmp_path, lambda *report: reports.append(report))
    assert Path(str(answer["graph"])).is_file()
    phases = list(dict.fromkeys(what for what, _, _ in reports))
    assert phases == ["starting the conversion", "reading the tokenizer", "converting the weights"]
    for phase in phases:
        done = [done for what, done, total in reports if what == phase and total == 1]
        assert done.count(1) == 1
        assert done[-1] == 1


def test_an_exception_is_told_without_a_stack_trace(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"TypeError: .*'nonsense'.*Do this\.") as caught:
        start(tmp_path, lambda *_: None, nonsense="1")
    assert "Traceback" not in str(caught.value)


def test_our_own_errors_come_through_whole(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"nonsense")
    with pytest.raises(ExportError, match="not a GGUF file") as caught:
        start(tmp_path, lambda *_: None)
    assert caught.value.where == str(tmp_path / "tiny.gguf")


def test_a_crash_is_an_error(tmp_path: Path) -> None:
    before = psutil.Process().children()

    def crash(*_: object) -> None:
        for process in come_since(before):
            process.kill()

    with pytest.raises(ExportError, match=r"process ended with code -?\d+.*Do this\."):
        start(tmp_path, crash)


def test_an_interruption_ends_the_child(tmp_path: Path) -> None:
    before = psutil.Process().children()
    running: list[psutil.Process] = []

    def interrupt(*_: object) -> None:
        running.extend(come_since(before))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, interrupt)
    assert running
    assert not any(process.is_running() for process in running)


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    program = (
        "import time, sys\n"
        "from pathlib import Path\n"
        "from exporters.sources import child\n"
        "def hold(*_):\n"
        "    print('running', flush=True)\n"
        "    time.sleep(600)\n"
        f"child.run('keep', {{'path': {str(tmp_path / 'tiny.gguf')!r}, 'workdir': {str(tmp_path)!r}}},"
        f" Path({str(tmp_path / 'log')!r}), hold, where='', hint='')\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline().strip() == b"running"
        children = psutil.Process(parent.pid).children()
        parent.kill()
    assert len(children) == 1
    assert not still_alive(children, 60)
