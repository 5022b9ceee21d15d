from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from agent import download, paths
from agent.cli.demo import demo_package
from exporters import export as exporting
from shards import manifest as manifests
from shards.manifest import FileEntry, Manifest, WeightSpans
from shards.progress import silent
from shards.store import PackageStore


@pytest.fixture
def made(tmp_path: Path, smollm2_package: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Packages made so far; each is one small file, and downloading is none."""
    made: list[Path] = []
    facts = manifests.read(smollm2_package).facts

    def export(source: str, package: Path, **options: object) -> SimpleNamespace:
        package.mkdir(parents=True, exist_ok=True)
        (package / "file").write_bytes(b"content")
        digest = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
        files = (FileEntry(path="file", size=7, pieces=(digest,)),)
        spans = WeightSpans(shared=(), embedding=(), layers=((),) * facts.layers, head=())
        manifests.write(package, Manifest(facts=facts, spans=spans, files=files))
        made.append(package)
        return SimpleNamespace(package=package)

    monkeypatch.setattr(paths, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(download, "smollm2_gguf", lambda progress: tmp_path / "model.gguf")
    monkeypatch.setattr(exporting, "export", export)
    return made


def test_it_is_made_once(made: list[Path], tmp_path: Path) -> None:
    package = demo_package(silent)
    assert package.is_relative_to(tmp_path)
    assert demo_package(silent) == package
    assert made == [package]


@pytest.mark.parametrize("content", [b"", b"contend", None])
def test_a_damaged_one_is_made_again(made: list[Path], content: bytes | None) -> None:
    file = demo_package(silent) / "file"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    package = demo_package(silent)
    assert made == [package, package]
    store = PackageStore(package)
    store.verify(store.all_pieces())
    assert file.read_bytes() == b"content"
