"""How large a KV cache `edge-agent serve` makes where nobody says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from agent.cli.serve import _sized
from pipeline.running import RunOptions
from shards import manifest
from shards.errors import CapacityError

OPTIONS = RunOptions(mode="exact")


def sized(package: Path, users: int, context: int, kv_tokens: int | None = None) -> int:
    return _sized(package, OPTIONS, kv_tokens, users, context).kv_tokens


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    memory = SimpleNamespace(available=2**36)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    return memory


def test_it_holds_what_users_and_context_come_to(
    smollm2_package: Path, free: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sized(smollm2_package, 4, 1000) == 4096
    assert sized(smollm2_package, 2, 10**6) == 2 * manifest.read(smollm2_package).facts.context_length
    assert sized(smollm2_package, 4, 1000, kv_tokens=77) == 77
    assert capsys.readouterr().err == ""


def test_where_less_fits_both_numbers_are_told(
    smollm2_package: Path, free: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    free.available = 2 * 2**30
    holds = sized(smollm2_package, 16, 4096)
    assert 1024 < holds < 16 * 4096 and holds % 256 == 0
    assert f"16 x 4096 tokens come to 65536; {holds} fit" in capsys.readouterr().err
    free.available = 2**30
    with pytest.raises(CapacityError, match="0 MB are free"):
        sized(smollm2_package, 16, 4096)
