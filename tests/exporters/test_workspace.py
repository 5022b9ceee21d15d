"""The export's place: nothing that is not a package is ever touched, nothing half-made is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from exporters.workspace import check_space, check_target, publish, workspace
from shards import manifest as manifests
from shards.errors import CapacityError, ExportError
from shards.manifest import FileEntry, Manifest, ModelFacts, WeightSpans

FACTS = ModelFacts(
    name="toy", architecture=None, layers=1, hidden_size=8, kv_heads=1, head_size=8, vocabulary=16,
    context_length=64, stop_tokens=(), weights="fp32",
)  # fmt: skip


def make_package(folder: Path, text: str = "old") -> Path:
    folder.mkdir()
    (folder / "content").write_text(text, "utf-8")
    entry = FileEntry(path="content", size=len(text), pieces=("ab",))
    spans = WeightSpans(shared=(), embedding=(), layers=((),), head=())
    manifests.write(folder, Manifest(facts=FACTS, spans=spans, files=(entry,)))
    return folder


def test_is_gone_afterwards_whatever_happens(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "package"
    for error in (KeyboardInterrupt, ValueError):
        with pytest.raises(error), workspace(target) as folder:
            (folder / "file").write_text("half", "utf-8")
            raise error
    assert list(target.parent.iterdir()) == []


def test_removes_what_a_killed_export_left(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from exporters.workspace import workspace\n"
        "with workspace(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'file').write_text('half', 'utf-8'); os._exit(9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path / "package")], check=False)
    assert killed.returncode == 9
    (left,) = tmp_path.iterdir()
    running = tmp_path / f".package.exporting-{os.getppid()}"
    running.mkdir()
    with workspace(tmp_path / "package") as folder:
        assert not left.exists()
        assert running.exists()
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == [running]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(ExportError, match="cannot be made there") as caught, workspace(tmp_path / "file" / "package"):
        pass
    assert caught.value.where == str(tmp_path / "file" / "package")


def test_what_may_be_replaced(tmp_path: Path) -> None:
    check_target(tmp_path / "nothing", force=False)
    (tmp_path / "empty").mkdir()
    check_target(tmp_path / "empty", force=False)
    package = make_package(tmp_path / "package")
    with pytest.raises(ExportError, match=r"package here already.*--force"):
        check_target(package, force=False)
    check_target(package, force=True)


def test_what_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(ExportError, match="a file of this name"):
        check_target(tmp_path / "file", force=True)
    with pytest.raises(ExportError, match="not a model package"):
        check_target(tmp_path, force=True)
    package = make_package(tmp_path / "package")
    (package / "notes.txt").write_text("mine", "utf-8")
    with pytest.raises(ExportError, match=r"not part of the package: notes\.txt"):
        check_target(package, force=True)
    (package / "notes.txt").unlink()
    (package / manifests.MANIFEST).write_text('{"name": "somebody else\'s manifest"}', "utf-8")
    with pytest.raises(ExportError, match="not a model package"):
        check_target(package, force=True)


def test_publishes_in_place_of_the_old_package(tmp_path: Path) -> None:
    target = make_package(tmp_path / "package", "old")
    with workspace(target) as folder:
        publish(make_package(folder / "package", "new"), target)
    assert (target / "content").read_text("utf-8") == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_the_old_package_comes_back_when_publishing_fails(tmp_path: Path) -> None:
    target = make_package(tmp_path / "package", "old")
    with workspace(target) as folder, pytest.raises(ExportError, match="cannot be put in place"):
        publish(folder / "never made", target)
    assert (target / "content").read_text("utf-8") == "old"


def test_a_disk_too_small_gives_both_numbers(tmp_path: Path) -> None:
    check_space(tmp_path, 1)
    with pytest.raises(CapacityError, match=r"1,000,000,000,000 MB wanted, [\d,]+ MB free"):
        check_space(tmp_path, 10**18)
