"""What `edge-agent serve` makes of what is asked for, and where nobody says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from typer.testing import CliRunner

from agent.cli.app import app
from agent.cli.draft_options import check_draft_node
from agent.cli.serve import Engine, _choice, _fleet_engine, _local_engine, _sized, _Watch, _welcome
from agent.fleet.discovery import interfaces
from agent.fleet.head.fleet_model import FleetModel
from pipeline.running import RunOptions
from shards import manifest
from shards.errors import CapacityError, ConfigurationError

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


@pytest.mark.parametrize(
    ("node", "draft", "is_fleet", "said"),
    [
        ("pc-2", "draft", False, "--draft-node: with --local-stages there is no other PC that could guess"),
        ("pc-2", "ngram", True, "--draft-node: with --draft ngram there is no model that could run on 'pc-2'"),
        ("pc-2", "draft", True, None),
        ("auto", "draft", False, None),
        ("head", "none", False, None),
    ],
)
def test_a_node_for_the_draft_takes_a_fleet_and_draft(node: str, draft: str, is_fleet: bool, said: str | None) -> None:
    if said is None:
        check_draft_node(node, draft, is_fleet=is_fleet)
        return
    with pytest.raises(ConfigurationError) as raised:
        check_draft_node(node, draft, is_fleet=is_fleet)
    assert str(raised.value).startswith(said)


def test_local_stages_take_no_other_node_for_the_draft(tiny_chat_package: Path) -> None:
    command = ["serve", str(tiny_chat_package), "--local-stages", "1", "--draft", str(tiny_chat_package)]
    result = CliRunner().invoke(app, [*command, "--draft-node", "pc-2"])
    assert isinstance(result.exception, ConfigurationError)
    assert result.exception.where == "--draft-node" and "--local-stages" in result.exception.what


@pytest.mark.parametrize(("address", "shown"), [("192.0.2.7", "192.0.2.7:8200"), ("fd77::1", "[fd77::1]:8200")])
def test_it_says_where_pcs_join(
    address: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(interfaces, "own_addresses", lambda: (address,))
    _welcome("http://127.0.0.1:8114", "llama", None, control=8200, is_open=False)
    assert f"head   {shown} " in capsys.readouterr().out
    _welcome("http://127.0.0.1:8114", "llama", None, control=None, is_open=False)
    assert "join" not in capsys.readouterr().out


def test_a_pc_that_waits_is_told_of_once_and_again_when_it_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    state: dict[str, Any] = {"events": [{"time": 1.0, "what": "pc-2 has joined"}], "pending": []}
    waiting = {"code": "ABCD-EFGH", "name": None, "address": "192.0.2.9"}
    watch = _Watch(cast(FleetModel, SimpleNamespace(describe=lambda: state)))
    for state["pending"] in ([], [waiting], [waiting], [], [waiting]):
        watch.look()
    told = capsys.readouterr().err
    assert (told.count("pc-2 has joined"), told.count("edge-agent approve ABCD-EFGH")) == (1, 2)
