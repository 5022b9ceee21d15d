"""The stage files that llama.cpp runs from: shared by processes, made again when they are damaged, and not too many."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packages import llamacpp_package_of
from tiny_gguf import write_tiny_gguf

from shards.errors import CapacityError, PackageError, StageError
from shards.llamacpp import stage_cache, stage_file
from shards.loading import load_stage
from shards.runtime import Batch, SequenceRows, StageConfig, StageRuntime

LAYERS = 6
BATCH = Batch((SequenceRows(1, 0, 3),), np.array([5, 6, 7]))
_LOADS = """
import sys
from pathlib import Path
import numpy as np
from shards.loading import load_stage
from shards.runtime import Batch, SequenceRows, StageConfig

if __name__ == "__main__":
    config = StageConfig(package=Path(sys.argv[1]), first_layer=0, end_layer=4, mode="exact", engine="llamacpp",
                         kv_tokens=256, threads=1)
    sys.stdin.readline()
    stage = load_stage(config, cache=Path(sys.argv[2]))
    print(stage.step(Batch((SequenceRows(1, 0, 3),), np.array([5, 6, 7]))).tobytes().hex(), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    return llamacpp_package_of(write_tiny_gguf(folder / "tiny.gguf", layers=LAYERS, stored="F32"), folder / "package")


def load(package: Path, cache: Path, first: int, end: int) -> StageRuntime:
    like: dict[str, Any] = {"mode": "exact", "engine": "llamacpp", "kv_tokens": 256, "threads": 1}
    return load_stage(StageConfig(package=package, first_layer=first, end_layer=end, **like), cache=cache)


def files(cache: Path) -> list[str]:
    """The layers of each file there is."""
    return sorted("-".join(path.stem.split("-")[1:]) for path in (cache / "llamacpp").glob("*.gguf"))


def test_a_file_is_used_again_and_made_again_when_a_byte_of_it_is_wrong(tiny: Path, tmp_path: Path) -> None:
    stage = load(tiny, tmp_path, 0, 3)
    want = stage.step(BATCH).copy()
    stage.close()
    (path,) = (tmp_path / "llamacpp").glob("*.gguf")
    before = path.stat().st_ino, path.read_bytes()
    load(tiny, tmp_path, 0, 3).close()
    assert (path.stat().st_ino, path.read_bytes()) == before
    whole = before[1]
    flips = [bytearray(whole) for _ in range(2)]
    flips[0][len(whole) // 2] ^= 1
    flips[1][whole.index(b"blk.1.")] ^= 1
    for damaged in (whole[:-32], b"GGUX" + whole[4:], b"", whole + b"more", *map(bytes, flips)):
        path.write_bytes(damaged)
        stage = load(tiny, tmp_path, 0, 3)
        np.testing.assert_array_equal(stage.step(BATCH), want)
        stage.close()
        assert path.read_bytes() == whole
    assert files(tmp_path) == ["0-3"]


def test_the_last_few_are_kept_and_those_at_work(tiny: Path, tmp_path: Path) -> None:
    at_work = load(tiny, tmp_path, 0, 1)
    want = at_work.step(BATCH).copy()
    for n, layers in enumerate([(1, 2), (2, 3), (3, 4), (1, 2), (4, 5)]):
        load(tiny, tmp_path, *layers).close()
        for path in (tmp_path / "llamacpp").glob(f"*-{layers[0]}-{layers[1]}.gguf"):
            os.utime(path, (n, n))  # file systems may count in seconds
    assert stage_cache.KEPT == 2
    assert files(tmp_path) == ["0-1", "1-2", "3-4", "4-5"]  # the one that was loaded last was at work then
    load(tiny, tmp_path, 4, 5).close()
    assert files(tmp_path) == ["0-1", "1-2", "3-4", "4-5"]
    load(tiny, tmp_path, 5, 6).close()
    assert files(tmp_path) == ["0-1", "1-2", "4-5", "5-6"]
    at_work.free(1)
    np.testing.assert_array_equal(at_work.step(BATCH), want)
    at_work.close()


def test_processes_that_load_the_same_layers_at_once_share_a_file(tiny: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LOADS, str(tiny), str(tmp_path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    processes = [subprocess.Popen(command, **pipes) for _ in range(4)]
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        said = {process.stdout.readline() for process in processes if process.stdout is not None}
        assert len(said) == 1 and len(said.pop()) > 100
        assert files(tmp_path) == ["0-4"]
        for n in range(1, 5):  # who was killed holds nothing, those that live do
            load(tiny, tmp_path, n, n + 1).close()
            assert "0-4" in files(tmp_path)
            processes[n - 1].kill()
            processes[n - 1].wait()
        for n in range(1, 4):
            load(tiny, tmp_path, n, n + 2).close()
        assert "0-4" not in files(tmp_path)
    finally:
        for process in processes:
            process.kill()
            with process:  # closes the pipes
                pass


def test_what_a_killed_process_has_left_goes(tiny: Path, tmp_path: Path) -> None:
    load(tiny, tmp_path, 0, 1).close()
    folder = tmp_path / "llamacpp"
    (folder / f"x.gguf.1{stage_file.PARTIAL}").write_bytes(b"half")
    load(tiny, tmp_path, 1, 2).close()
    assert not list(folder.glob(f"*{stage_file.PARTIAL}"))


def test_a_full_disk_is_said_with_both_numbers_and_leaves_nothing(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(stage_file, "_copy", fail)
        with pytest.raises(CapacityError, match=r"the disk is full: the stage's file takes \d+ bytes, \d+ are free"):
            load(tiny, tmp_path, 0, 1)
    assert files(tmp_path) == [] and not list((tmp_path / "llamacpp").glob("*.partial"))
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
        with pytest.raises(CapacityError, match=r"takes \d+ bytes, 1000 are free"):
            load(tiny, tmp_path, 0, 1)
    assert files(tmp_path) == []


def test_on_a_full_disk_unused_files_make_room(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work = load(tiny, tmp_path, 0, 1)
    for n in range(1, 3):
        load(tiny, tmp_path, n, n + 1).close()
    usage, room = shutil.disk_usage(tmp_path), 10**6

    def free(_: Path) -> Any:
        return usage._replace(free=room - 500_000 * (len(files(tmp_path)) - 1))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", free)
        load(tiny, tmp_path, 3, 4).close()
    assert files(tmp_path) == ["0-1", "2-3", "3-4"]
    at_work.close()


def test_a_file_that_goes_is_an_error_before_it_is_loaded_and_no_matter_afterwards(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = load(tiny, tmp_path, 0, 2)
    want = stage.step(BATCH).copy()
    if os.name == "nt":  # nobody can remove it
        with pytest.raises(PermissionError):
            shutil.rmtree(tmp_path / "llamacpp")
        stage.close()
        return
    shutil.rmtree(tmp_path / "llamacpp")
    stage.free(1)
    np.testing.assert_array_equal(stage.step(BATCH), want)
    stage.close()
    monkeypatch.setattr(stage_cache, "_share", lambda file: Path(file.name).unlink())
    with pytest.raises(StageError, match=r"0-2\.gguf: llama.cpp cannot load the stage: .*failed to open"):
        load(tiny, tmp_path, 0, 2)


def test_a_cache_that_cannot_be_written_is_named(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "llamacpp").write_bytes(b"a file")
    with pytest.raises(PackageError, match=r"llamacpp.*the stage's file cannot be kept"):
        load(tiny, tmp_path, 0, 2)
