"""A llama.cpp that is not there, or another one than is needed, is one clear error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_cpp import llama_cpp as lib

from shards.errors import StageError
from shards.llamacpp import binding


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """Each test checks anew, and leaves it to be checked again."""
    binding.binding.cache_clear()
    yield
    binding.binding.cache_clear()


def test_what_is_installed_fits() -> None:
    native = binding.binding()
    assert native.version
    assert native is binding.binding()


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp", None)
    with pytest.raises(StageError, match=r'llama-cpp-python is not installed.*pip install "edge-agent\[llamacpp\]"'):
        binding.binding()


def test_whether_it_is_there_is_said_without_loading_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding.importlib, "import_module", lambda name: pytest.fail(name))
    binding.require()
    monkeypatch.setattr(binding, "find_spec", lambda name: None)
    with pytest.raises(StageError, match=r'not installed.*pip install "edge-agent\[llamacpp\]"'):
        binding.require()


def test_a_library_that_does_not_load_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("Failed to load shared library: no such file")

    monkeypatch.setattr(binding.importlib, "import_module", fail)
    with pytest.raises(StageError, match=r"cannot be loaded \(Failed to load .*--force-reinstall"):
        binding.binding()


@pytest.mark.parametrize("name", ["llama_memory_seq_cp", "llama_get_logits"])
def test_a_missing_function_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(lib, name)
    with pytest.raises(StageError, match=rf"of another version than is needed: it lacks {name}\. Install"):
        binding.binding()


def test_a_missing_field_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(binding._FIELDS, "llama_batch", ("n_tokens", "no_such_field"))
    with pytest.raises(StageError, match=r"it lacks llama_batch\.no_such_field"):
        binding.binding()


def test_fields_at_other_places_than_the_librarys_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = lib.llama_context_default_params

    def shifted() -> Any:
        parameters = defaults()
        parameters.n_seq_max, parameters.type_k = parameters.type_k, parameters.n_seq_max + 1
        return parameters

    monkeypatch.setattr(lib, "llama_context_default_params", shifted)
    with pytest.raises(StageError, match="do not belong together"):
        binding.binding()


def test_nothing_is_printed_and_the_reason_is_kept(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    native = binding.binding()
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(60))
    native.said.clear()
    assert not lib.llama_model_load_from_file(str(tmp_path / "bad.gguf").encode(), lib.llama_model_default_params())
    assert "fail" in native.reason()
    assert native.reason() == "it does not say why"
    printed = capfd.readouterr()
    assert printed.out + printed.err == ""
