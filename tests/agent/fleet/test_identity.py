from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.fleet.trust import identity
from agent.fleet.trust.identity import FleetIdentity, JoinedFleets, NodeIdentity, clean_name
from agent.fleet.trust.token import decode, encode
from pipeline.link import KeyPair
from shards.errors import ConfigurationError

KINDS = [(NodeIdentity, "node.json"), (FleetIdentity, "fleet.json")]
Kind = type[NodeIdentity] | type[FleetIdentity]


@pytest.mark.parametrize(("kind", "file"), KINDS)
def test_an_identity_is_made_once_and_for_its_owner_alone(tmp_path: Path, kind: Kind, file: str) -> None:
    folder = tmp_path / "settings"
    made = kind.load_or_create(folder)
    assert kind.load_or_create(folder) == made
    assert made.name == identity.default_name()
    if os.name == "posix":
        assert stat.S_IMODE((folder / file).stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(("kind", "file"), KINDS)
def test_no_secret_is_shown(tmp_path: Path, kind: Kind, file: str) -> None:
    made = kind.load_or_create(tmp_path)
    stored = json.loads((tmp_path / file).read_text("utf-8"))
    secrets = [value["secret"] for value in stored.values() if isinstance(value, dict)]
    assert len(secrets) == (1 if kind is NodeIdentity else 2)
    assert not any(secret in repr(made) + str(made) for secret in secrets)


@pytest.mark.parametrize(("kind", "file"), KINDS)
@pytest.mark.parametrize("damage", ["cut", "empty", "no json", "other secret", "no key", "missing", "nameless"])
def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, kind: Kind, file: str, damage: str) -> None:
    kind.load_or_create(tmp_path)
    path = tmp_path / file
    good = path.read_text("utf-8")
    data = json.loads(good)
    secret = data["keys"]["secret"]
    match damage:
        case "cut":
            bad = good[:-20]
        case "empty":
            bad = ""
        case "no json":
            bad = secret
        case "other secret":
            bad = good.replace(secret, KeyPair.new().secret)
        case "no key":
            bad = json.dumps(data | {"keys": {"public": "\t" * 40, "secret": "\t" * 40}})
        case "missing":
            bad = json.dumps({"name": data["name"]})
        case _:
            bad = json.dumps(data | {"name": ""})
    path.write_text(bad, "utf-8")
    with pytest.raises(ConfigurationError) as caught:
        kind.load_or_create(tmp_path)
    assert str(path) in str(caught.value)
    assert secret not in str(caught.value)
    assert path.read_text("utf-8") == bad


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    made = NodeIdentity.load_or_create(tmp_path)
    (tmp_path / "node.json").chmod(0o644)
    if os.name == "posix":
        with pytest.raises(ConfigurationError, match="chmod 600"):
            NodeIdentity.load_or_create(tmp_path)
    (tmp_path / "node.json").chmod(0o600)
    assert NodeIdentity.load_or_create(tmp_path) == made


def test_processes_that_begin_at_the_same_time_agree(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from agent.fleet.trust.identity import NodeIdentity\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(NodeIdentity.load_or_create(pathlib.Path(sys.argv[1])).keys.public)\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "settings")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            cwd=Path(identity.__file__).parents[2],
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    keys = {process.communicate(timeout=60)[0] for process in processes}
    assert keys == {NodeIdentity.load_or_create(tmp_path / "settings").keys.public + "\n"}


def test_a_renewed_token_is_another_and_the_fleet_the_same(tmp_path: Path) -> None:
    fleet = FleetIdentity.load_or_create(tmp_path)
    renewed = fleet.renew_token(tmp_path)
    assert (renewed.keys, renewed.name) == (fleet.keys, fleet.name)
    assert renewed.joining != fleet.joining
    assert FleetIdentity.load_or_create(tmp_path) == renewed
    token = decode(encode(renewed.keys.public, renewed.joining.secret))
    assert (token.fleet, token.joining) == (fleet.keys.public, renewed.joining)


def test_joined_fleets_are_kept_newest_first(tmp_path: Path) -> None:
    keys = [KeyPair.new().public for _ in range(3)]
    joined = JoinedFleets(tmp_path)
    assert joined.fleets == ()
    for key in keys:
        joined.remember(key, "home", "192.168.1.2:8115")
    joined.remember(keys[1], "work", "[fe80::1]:8115")
    assert [fleet.fleet for fleet in joined.fleets] == [keys[1], keys[2], keys[0]]
    assert (joined.fleets[0].name, joined.fleets[0].address) == ("work", "[fe80::1]:8115")
    assert JoinedFleets(tmp_path).fleets == joined.fleets
    joined.forget(keys[2])
    joined.forget(keys[2])
    assert [fleet.fleet for fleet in JoinedFleets(tmp_path).fleets] == [keys[1], keys[0]]


def test_joined_fleets_do_not_grow_without_limit(tmp_path: Path) -> None:
    joined = JoinedFleets(tmp_path)
    for _ in range(20):
        joined.remember(KeyPair.new().public, "home", "10.0.0.1:8115")
    assert len(JoinedFleets(tmp_path).fleets) == 16


@given(st.text(max_size=200))
@example("[bold red]pc[/]")
@example("pc\n\x1b[31mred\u202e")
@example("<script>")
@example("ﷺ" * 100)
@example("--")
def test_names_are_clean(text: str) -> None:
    name = clean_name(text)
    assert 1 <= len(name.encode()) <= 63
    assert name.isprintable()
    assert all(character.isalnum() or character in "-_." for character in name)
    assert name[0] not in "-."
    assert clean_name(name) == name


@pytest.mark.parametrize(
    ("host", "name"),
    [("annas-pc", "annas-pc"), ("PC_7.home.arpa", "PC_7"), ("Büro", "Büro"), ("", "pc"), ("a b", "a-b")],
)
def test_a_pc_is_called_after_its_host_name(monkeypatch: pytest.MonkeyPatch, host: str, name: str) -> None:
    monkeypatch.setattr(identity.socket, "gethostname", lambda: host)
    assert identity.default_name() == name


def test_a_file_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    if os.name == "posix":
        (tmp_path / "node.json").symlink_to(tmp_path / "nowhere" / "node.json")
    else:
        (tmp_path / "node.json").mkdir()
    with pytest.raises(ConfigurationError, match=r"node\.json"):
        NodeIdentity.load_or_create(tmp_path)


def test_a_name_is_kept(tmp_path: Path) -> None:
    made = NodeIdentity.load_or_create(tmp_path)
    renamed = made.renamed("laptop-2", tmp_path)
    assert (renamed.name, renamed.keys) == ("laptop-2", made.keys)
    assert NodeIdentity.load_or_create(tmp_path) == renamed
