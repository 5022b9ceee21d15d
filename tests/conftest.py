"""Models the tests share. What takes long to make is kept in the user's cache, and made by one process at a time."""

from __future__ import annotations

import hashlib
import signal
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest
from hypothesis import HealthCheck, settings
from packages import ir_of, package_of
from sharing import made_once, one_at_a_time

from agent import download

_SOURCES = ("exporters/**/*.py", "shards/graph/*.py", "shards/llamacpp/metadata.py", "shards/manifest.py")

collect_ignore_glob = [] if find_spec("llama_cpp") else ["*test_llamacpp_*.py"]
"""The extra is for some; without it, what needs it is no test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="compare everything in every way; takes much longer")
    parser.addoption("--update-pictures", action="store_true", help="keep what the screen looks like now; look at it")


def pytest_configure(config: pytest.Config) -> None:
    """Properties are tried for as long as it takes, on the same examples each time; with --exhaustive on new ones.

    Processes hear Ctrl-C, whoever starts the tests: a shell has those in its background ignore it, and theirs too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    is_random = bool(config.getoption("exhaustive"))
    settings.register_profile(
        "edge-agent", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=not is_random
    )
    settings.load_profile("edge-agent")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: tests wait a good deal, for processes, for sockets and for time to pass."""
    return (psutil.cpu_count(logical=False) or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes goes first: at the end it would keep one processor busy, and the others waiting."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, Q4_1; downloaded once."""
    with one_at_a_time("smollm2.gguf"):
        return download.smollm2_gguf()


@pytest.fixture(scope="session")
def smollm2_package(smollm2_gguf: Path) -> Path:
    """The package of SmolLM2 with its weights kept, made once for each state of the code that makes it. Read only."""
    return _smollm2(smollm2_gguf, "openvino")


@pytest.fixture(scope="session")
def smollm2_llamacpp_package(smollm2_gguf: Path) -> Path:
    """The same with the llama.cpp backend as well. Read only."""
    return _smollm2(smollm2_gguf, "both")


def _smollm2(gguf: Path, backend: Literal["openvino", "both"]) -> Path:
    from exporters.export import export

    def make(package: Path) -> None:
        export(str(gguf), package, weights="keep", backend=backend, verified=False)

    return made_once(f"smollm2-{backend}", _key(f"{gguf.name} {gguf.stat().st_size}".encode()), make)


@pytest.fixture(scope="session")
def smollm2_ir(smollm2_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as a source: an OpenVINO IR folder in optimum's layout. Read only: its files are links."""
    return ir_of(smollm2_package, tmp_path_factory.mktemp("sources") / "SmolLM2-135M-Instruct")


@pytest.fixture(scope="session")
def tiny_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of four layers, without a tokenizer. Read only."""
    from zoo import family_ir

    return package_of(family_ir("llama"), tmp_path_factory.mktemp("packages") / "tiny-llama")


@pytest.fixture(scope="session")
def tiny_chat_package() -> Path:
    """A random llama of four layers, with a tokenizer and a chat template, and room for 4096 tokens. Read only."""
    import tiny_gguf

    from exporters.export import export

    shape: dict[str, Any] = {"layers": 4, "metadata": {"llama.context_length": 4096}}

    def make(folder: Path) -> None:
        folder.mkdir()
        source = tiny_gguf.write_tiny_gguf(folder / "tiny.gguf", **shape)
        export(str(source), folder / "tiny", weights="keep", backend="openvino", verified=False)

    key = _key(Path(tiny_gguf.__file__).read_bytes() + repr(shape).encode())
    return made_once("tiny-chat", key, make) / "tiny"


@pytest.fixture(scope="session")
def tiny_f32_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of four layers, with a tokenizer, for llama.cpp. Read only.

    In f32: what is quantised, llama.cpp multiplies by rounded numbers, so texts depend on who shares a step.
    """
    from tiny_gguf import write_tiny_gguf

    from exporters.export import export

    folder = tmp_path_factory.mktemp("tiny-f32")
    source = write_tiny_gguf(folder / "tiny.gguf", layers=4, stored="F32")
    return export(str(source), folder / "tiny", backend="llamacpp", verified=False).package


def _key(source: bytes) -> str:
    """Names everything that a package of this source depends on."""
    root = Path(__file__).parent.parent
    digest = hashlib.sha256(source)
    for tool in ("openvino", "openvino-genai", "openvino-tokenizers"):
        digest.update(version(tool).encode())
    for pattern in _SOURCES:
        for path in sorted(root.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
