"""Finding heads: those that announce themselves, and this user's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent.fleet.discovery import heads as heads_module
from agent.fleet.discovery import reach
from agent.fleet.discovery.announcement import Announcement
from agent.fleet.discovery.heads import FoundHead, find_heads, heads
from agent.fleet.head.one_head import HeadNote, OneHead, running_head
from shards.errors import ConfigurationError

HOME, OFFICE = "h" * 40, "o" * 40
OWN = ("192.0.2.7", "172.17.0.1")
URL = "http://127.0.0.1:8114"


@pytest.fixture(autouse=True)
def this_pc(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (heads_module, reach):
        monkeypatch.setattr(module, "own_addresses", lambda: OWN)


def announced(fleet: str, name: str, *addresses: str, api: int | None = 8114, role: str = "head") -> Announcement:
    return Announcement.model_validate(
        {"key": "a" * 40, "fleet": fleet, "role": role, "name": name, "version": "1.0", "api": api}
        | {"addresses": addresses}
    )


def note(fleet: str = HOME, url: str = URL) -> HeadNote:
    return HeadNote.of_this_process(name="home", fleet=fleet, version="1.1", url=url)


def test_a_head_of_another_pc_is_where_it_says() -> None:
    other = announced(OFFICE, "office", "192.0.2.1", "172.17.0.1", "fd00::1", "fe80::1", api=9000)
    urls = ("http://192.0.2.1:9000", "http://[fd00::1]:9000")
    assert heads(None, [other]) == (FoundHead("office", OFFICE, "1.0", urls),)


def test_a_head_that_others_cannot_reach_has_no_address() -> None:
    found = heads(None, [announced(OFFICE, "office", "192.0.2.1", api=None)])
    assert found == (FoundHead("office", OFFICE, "1.0", ()),)


def test_nodes_and_heads_without_a_fleet_are_none() -> None:
    found = [announced(HOME, "pc", "192.0.2.1", role="node"), announced("", "pc", "192.0.2.2")]
    assert heads(None, found) == ()


def test_another_users_head_on_this_pc_is_on_loopback_first() -> None:
    (found,) = heads(None, [announced(OFFICE, "office", *OWN)])
    assert found.urls == (URL, "http://192.0.2.7:8114", "http://172.17.0.1:8114")


def test_this_users_own_head_comes_first_and_once() -> None:
    others = [announced(OFFICE, "a-office", "192.0.2.1"), announced(HOME, "home", *OWN, api=None)]
    first, second = heads(note(), others)
    assert first == FoundHead("home", HOME, "1.1", (URL,))
    assert second.name == "a-office"


def test_where_its_own_api_is_open_to_others_the_head_is_found_there_too() -> None:
    (found,) = heads(note(), [announced(HOME, "home", *OWN)])
    assert found.urls == (URL, "http://192.0.2.7:8114", "http://172.17.0.1:8114")


def test_a_head_of_an_earlier_version_notes_no_address() -> None:
    assert heads(note(url=""), []) == ()


def test_the_note_of_a_head_is_there_while_it_runs(tmp_path: Path) -> None:
    assert running_head(tmp_path) is None and find_heads(0, tmp_path) == ()
    with OneHead(tmp_path, note()):
        assert running_head(tmp_path) == note()
        assert find_heads(0, tmp_path) == (FoundHead("home", HOME, "1.1", (URL,)),)
    assert find_heads(0, tmp_path) == ()


def test_a_head_that_was_killed_is_not_found_and_in_nobodys_way(tmp_path: Path) -> None:
    program = (
        "import sys, os, pathlib; from agent.fleet.head.one_head import HeadNote, OneHead\n"
        "OneHead(pathlib.Path(sys.argv[1]), HeadNote.of_this_process(url='x')); print(flush=True); input(); os._exit(1)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert (found := running_head(tmp_path)) is not None and found.process == other.pid
        with pytest.raises(ConfigurationError, match=str(other.pid)):
            OneHead(tmp_path, note())
        other.communicate("\n")
    assert running_head(tmp_path) is None
    with OneHead(tmp_path, note()):
        assert running_head(tmp_path) == note()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"process": 1}', '{"process": -1, "since": 0}', "\x00"])
def test_a_note_that_is_none_is_of_no_head(tmp_path: Path, text: str) -> None:
    (tmp_path / "head.json").touch(0o600)
    (tmp_path / "head.json").write_text(text, "utf-8")
    assert find_heads(0, tmp_path) == ()
