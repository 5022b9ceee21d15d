"""What `edge-agent serve` makes of what is asked for, and where nobody says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from agent.cli.serve import Engine, _choice, _fleet_engine, _local_engine, _sized
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


@pytest.mark.parametrize(
    ("given", "local", "fleet", "choice"),
    [
        ("auto", "openvino-paged", "openvino-paged", "auto"),
        ("openvino", "openvino-paged", "openvino-paged", "openvino"),
        ("openvino-paged", "openvino-paged", "openvino-paged", "openvino"),
        ("openvino-stateful", "openvino-stateful", "openvino-stateful", "openvino"),
        ("llamacpp", "llamacpp", "openvino-paged", "llamacpp"),
    ],
)
def test_an_engine_is_this_pcs_and_of_openvinos_the_fleets(
    given: Engine, local: str, fleet: str, choice: str, smollm2_package: Path
) -> None:
    assert (_local_engine(given, smollm2_package), _fleet_engine(given), _choice(given)) == (local, fleet, choice)


def test_a_package_for_llama_cpp_alone_runs_on_that(smollm2_package: Path, tmp_path: Path) -> None:
    whole = manifest.read(smollm2_package)
    for_llamacpp = tuple(entry for entry in whole.files if not entry.path.startswith("openvino/"))
    nothing = manifest.WeightSpans.nothing(whole.facts.layers)
    manifest.write(tmp_path, whole.model_copy(update={"files": for_llamacpp, "spans": nothing, "llamacpp": nothing}))
    assert _local_engine("auto", tmp_path) == "llamacpp"
