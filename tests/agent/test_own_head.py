from __future__ import annotations

from pathlib import Path

import pytest

from agent import keys, own_head, paths
from agent.address import DEFAULT_URL
from agent.cli.fleet import token
from agent.client import NoServerError
from agent.fleet.head.one_head import HeadNote, OneHead
from agent.fleet.trust.identity import FleetIdentity
from agent.own_head import key_for, own_url
from shards.errors import ConfigurationError

URL = "http://192.0.2.7:8200"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "config_folder", lambda: tmp_path)
    return tmp_path


def test_commands_go_to_this_users_head_wherever_it_listens(settings: Path) -> None:
    assert own_url() == DEFAULT_URL
    with OneHead(settings, HeadNote.of_this_process(url=URL)):
        assert own_url() == URL
    assert own_url() == DEFAULT_URL


def test_a_users_key_does_not_leave_this_pc(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_head, "own_addresses", lambda: ("192.0.2.7", "fd77::1"))
    assert key_for(DEFAULT_URL, None) is None  # and none is made
    key, _ = keys.own_key()
    for here in (DEFAULT_URL, "localhost:9", URL, "192.0.2.7", "http://[fd77::1]:8200"):
        assert key_for(here, None) == key
    for elsewhere in ("http://192.0.2.8:8200", "pc-2", "http://127.0.0.1.example.org:8114"):
        assert key_for(elsewhere, None) is None


def test_a_key_that_is_given_goes_where_it_is_meant_to(settings: Path) -> None:
    file = settings / "key.txt"
    file.touch(0o600)
    file.write_text("given", "utf-8")
    assert key_for(URL, file) == "given"
    with pytest.raises(ConfigurationError, match="no such file"):
        key_for(URL, settings / "none.txt")


def test_a_token_is_not_renewed_behind_the_back_of_a_head_that_runs(settings: Path) -> None:
    before = FleetIdentity.load_or_create(settings)
    with OneHead(settings, HeadNote.of_this_process(url="http://127.0.0.1:9")), pytest.raises(NoServerError):
        token(renew=True, url=None)
    assert FleetIdentity.load_or_create(settings) == before
    token(renew=True, url=None)
    assert FleetIdentity.load_or_create(settings).joining != before.joining
