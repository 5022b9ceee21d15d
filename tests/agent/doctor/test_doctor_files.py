"""Keys and cache: real files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from agent.doctor import cache, keys
from agent.doctor.cache import Cache, Copy
from shards.manifest import WEIGHTS
from shards.store import PackageStore


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    folder = tmp_path / "settings"
    folder.mkdir(mode=0o700)
    for name, text in {"api-key": "secret\n", "node.json": '{"name": "x"}\n'}.items():
        (folder / name).write_text(text, "utf-8")
        (folder / name).chmod(0o600)
    return folder


def test_keys_that_are_safe(settings: Path, tmp_path: Path) -> None:
    (check,) = keys.judge(settings)
    assert check.status == "ok"
    assert check.what.startswith("2 in ")
    (none,) = keys.judge(tmp_path / "nothing")
    assert none.status == "ok"


def test_keys_that_others_can_reach(settings: Path) -> None:
    (settings / "node.json").chmod(0o644)
    (settings / "api-key").chmod(0o620)
    settings.chmod(0o777)
    if os.name != "posix":  # there the user's profile guards them
        assert [check.status for check in keys.judge(settings)] == ["ok"]
        return
    folder, key, node = keys.judge(settings)
    assert [check.status for check in (folder, key, node)] == ["fault"] * 3
    assert folder.next_step == f"chmod 700 {settings}"
    assert f"chmod 600 {settings / 'api-key'}" in (key.next_step or "")
    assert f"chmod 600 {settings / 'node.json'}" in (node.next_step or "")


@pytest.mark.parametrize("content", [b"", b'{"name": ', b"\xff\xfe\x00"])
def test_keys_that_are_damaged(settings: Path, content: bytes) -> None:
    (settings / "node.json").write_bytes(content)
    (check,) = keys.judge(settings)
    assert check.status == "fault"
    assert "node.json" in check.what
    assert check.next_step


def test_keys_of_another_user(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    checks = keys.judge(settings)
    assert [check.status for check in checks] == ["fault", "fault"]
    assert "Permission denied" in checks[0].what
    assert "chown" in (checks[0].next_step or "")


GB = 10**9
HOME = Path("cache")


@pytest.mark.parametrize(
    ("facts", "status", "words"),
    [
        (Cache(HOME, 100 * GB), "ok", "100.0 GB free"),
        (Cache(HOME, 5 * GB), "warning", "large models"),
        (Cache(HOME, GB // 2), "fault", "no model fits"),
        (Cache(HOME, 100 * GB, problem="Read-only file system"), "fault", "Read-only file system"),
    ],
)
def test_room(facts: Cache, status: str, words: str) -> None:
    check = cache.judge(facts)[0]
    assert check.status == status
    assert words in check.what
    assert (check.next_step is None) == (status == "ok")


def test_copies_and_leftovers() -> None:
    copies = (Copy(HOME / "a", 7, 7), Copy(HOME / "b", 3, 7), Copy(HOME / "c", problem="weights: gone"))
    checks = cache.judge(Cache(HOME, 100 * GB, copies=copies, leftovers=((HOME / "partial-x", 93 * 10**6),)))
    assert [(check.status, check.what) for check in checks[1:]] == [
        ("ok", "model package b: 3 of 7 pieces, as stages needed them"),
        ("warning", "model package c: weights: gone"),
        ("ok", "complete model packages: 1"),
        ("warning", "93 MB are left of something that was interrupted"),
    ]
    assert str(HOME / "partial-x") in (checks[-1].next_step or "")


def test_a_real_cache(tiny_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.paths, "cache_folder", lambda: tmp_path / "cache")
    packages = tmp_path / "cache" / "packages"
    shutil.copytree(tiny_package, packages / "whole")
    whole = PackageStore(packages / "whole")
    partial = PackageStore.create(packages / "partial", whole.manifest)
    piece = whole.all_pieces()[0]
    partial.write(piece, whole.read(piece))
    shutil.copytree(tiny_package, packages / "cut")
    with (packages / "cut" / WEIGHTS).open("r+b") as weights:
        weights.truncate(100)
    shutil.copytree(tiny_package, packages / "gone")
    (packages / "gone" / WEIGHTS).unlink()
    shutil.copytree(tiny_package, packages / "unreadable")
    (packages / "unreadable" / "manifest.json").write_text("{", "utf-8")
    old, new = packages / f".x.exporting-{os.getpid()}", tmp_path / "cache" / "models" / "partial-new"
    for leftover in (old, new):
        leftover.mkdir(parents=True)
        (leftover / "bytes").write_bytes(bytes(3 * 10**6))
    os.utime(old, (0, 0))
    said = {check.what.partition(": ")[0]: check for check in cache.check()}
    assert said["complete model packages"].what.endswith(": 1")
    assert "1 of" in said["model package partial"].what
    for name, words in {"cut": "has 100 bytes", "gone": "is gone", "unreadable": "manifest"}.items():
        check = said[f"model package {name}"]
        assert check.status == "warning"
        assert words in check.what
    assert [text for text in said if "interrupted" in text] == ["3 MB are left of something that was interrupted"]


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setattr(cache.paths, "cache_folder", lambda: tmp_path / "file" / "cache")
    (check,) = cache.check()
    assert check.status == "fault"
    assert "nothing can be written" in check.what
