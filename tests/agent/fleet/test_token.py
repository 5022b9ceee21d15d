from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from agent.fleet.trust import token
from agent.fleet.trust.token import decode, encode, read_token
from pipeline.link import KeyPair
from shards.errors import ConfigurationError

FLEET, JOINING = KeyPair.new(), KeyPair.new()
TEXT = encode(FLEET.public, JOINING.secret)
ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_what_is_encoded_is_decoded(fleet: bytes, joining: bytes) -> None:
    public, secret = z85.encode(fleet).decode(), z85.encode(joining).decode()
    text = encode(public, secret)
    assert text.startswith("ea1-")
    assert set(text[4:]) <= set(ALPHABET)
    found = decode(text)
    assert (found.fleet, found.joining.secret) == (public, secret)


def test_the_joining_key_pair_is_whole() -> None:
    assert decode(TEXT).joining == JOINING


def test_a_token_does_not_show_its_secret() -> None:
    shown = repr(decode(TEXT)) + str(decode(TEXT))
    assert JOINING.secret not in shown
    assert TEXT not in shown


@pytest.mark.parametrize(
    "text",
    [
        TEXT.upper(),
        f"  {TEXT}\r\n",
        "\n".join(TEXT[i : i + 20] for i in range(0, len(TEXT), 20)),
        TEXT[:4] + "-".join(TEXT[i : i + 5] for i in range(4, len(TEXT), 5)),
    ],
)
def test_how_it_is_written_does_not_matter(text: str) -> None:
    assert decode(text) == decode(TEXT)


@given(st.integers(4, len(TEXT) - 1), st.sampled_from(ALPHABET))
def test_every_wrong_character_is_found(at: int, character: str) -> None:
    text = TEXT[:at] + character + TEXT[at + 1 :]
    if text == TEXT:
        return
    with pytest.raises(ConfigurationError, match="typing error") as caught:
        decode(text)
    assert text[4:] not in str(caught.value)


@given(st.integers(4, len(TEXT) - 2))
def test_every_two_characters_that_changed_places_are_found(at: int) -> None:
    text = TEXT[:at] + TEXT[at + 1] + TEXT[at] + TEXT[at + 2 :]
    if text == TEXT:
        return
    with pytest.raises(ConfigurationError, match="typing error"):
        decode(text)


@pytest.mark.parametrize("text", ["", "hello", TEXT[4:], TEXT[:-1], TEXT + "a", TEXT[:50] + "1" + TEXT[51:], "ea1-ß"])
def test_what_is_no_token_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ConfigurationError, match="token") as caught:
        decode(text)
    assert caught.value.hint


@given(st.text())
def test_any_text_is_a_token_or_a_clear_error(text: str) -> None:
    for candidate in (text, "ea1-" + text):
        with pytest.raises(ConfigurationError):
            decode(candidate)


def test_a_token_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TEXT + "\n", "utf-8")
    path.chmod(0o600)
    assert read_token(str(path)) == decode(TEXT)
    path.chmod(0o644)
    if os.name == "posix":
        with pytest.raises(ConfigurationError, match="chmod 600"):
            read_token(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="missing-token"):
        read_token(str(tmp_path / "missing-token"))


def test_a_token_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(TEXT + "\n"))
    assert read_token("-") == decode(TEXT)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_token_is_asked_for_without_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(token.getpass, "getpass", lambda _prompt: TEXT)
    assert read_token(None) == decode(TEXT)


def test_no_answer_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def getpass(_prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(token.getpass, "getpass", getpass)
    with pytest.raises(ConfigurationError, match="no token"):
        read_token(None)


def test_nobody_is_asked_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(TEXT))
    with pytest.raises(ConfigurationError, match="no terminal"):
        read_token(None)
