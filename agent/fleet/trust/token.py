"""The token: text that a person carries from the head to another PC, so that the PC may join the fleet by itself.

`ea1-`, then in base32 the fleet's public key (32 bytes), the joining secret key (32 bytes) and a CRC-16 of both. The
CRC finds every wrong character and every two that changed places; it protects from mistakes, the keys from enemies.
It is read from a file, a pipe or a prompt; never from a command line, which every user of a PC can see.
"""

from __future__ import annotations

import base64
import binascii
import getpass
import sys
import warnings
from pathlib import Path

import zmq
from pydantic import BaseModel, ConfigDict
from zmq.utils import z85

from agent import secure_file
from agent.fleet.control.messages import Key
from pipeline.link import KeyPair
from shards.errors import ConfigurationError

_PREFIX = "ea1"
_KEY_BYTES = 32
_BYTES = 2 * _KEY_BYTES + 2
_CHARACTERS = -(-_BYTES * 8 // 5)
_LARGEST = 4096
_AGAIN = "Copy the whole token from the head again."


class Token(BaseModel):
    """What a token says: which fleet, and the key pair with which its door lets one in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fleet: Key
    joining: KeyPair


def encode(fleet_public: str, joining_secret: str) -> str:
    """The text of a token, from keys in Z85."""
    payload = z85.decode(fleet_public.encode()) + z85.decode(joining_secret.encode())
    body = base64.b32encode(payload + binascii.crc_hqx(payload, 0).to_bytes(2, "big"))
    return f"{_PREFIX}-{body.decode().rstrip('=').lower()}"


def decode(text: str) -> Token:
    """Read a token. Spaces, line breaks, hyphens, and upper or lower case do not matter.

    Raises:
        ConfigurationError: it is no token, or there is a typing error in it. The text of the error does not show it.
    """
    compact = "".join(text.split()).replace("-", "").lower()
    if not compact.startswith(_PREFIX):
        raise _not_a_token(f"a token begins with {_PREFIX}-")
    body = compact.removeprefix(_PREFIX)
    if len(body) != _CHARACTERS:
        raise _not_a_token(f"a token has {_CHARACTERS} characters after {_PREFIX}-, this one {len(body)}")
    try:
        data = base64.b32decode(body.upper() + "=" * (-_CHARACTERS % 8))
    except ValueError:
        raise _not_a_token("a token consists of the letters a to z and the digits 2 to 7") from None
    fleet, joining = z85.encode(data[:_KEY_BYTES]).decode(), z85.encode(data[_KEY_BYTES:-2])
    if encode(fleet, joining.decode()) != f"{_PREFIX}-{body}":
        raise _not_a_token("there is a typing error in the token")
    keys = KeyPair(public=zmq.curve_public(joining).decode(), secret=joining.decode())
    return Token(fleet=fleet, joining=keys)


def read_token(source: str | None) -> Token:
    """Read a token from where the user has it.

    Args:
        source: Path of a file; `-` for standard input; None to ask for it on the terminal, without echo.

    Raises:
        ConfigurationError: there is none, it is wrong, or others can read the file.
    """
    if source is None:
        return decode(_ask())
    if source == "-":
        return decode(sys.stdin.read(_LARGEST))
    path = Path(source)
    text = secure_file.read(path)
    if text is None:
        raise ConfigurationError("there is no such file, which should hold the token", where=source)
    return decode(text)


def _ask() -> str:
    if not sys.stdin.isatty():
        raise ConfigurationError("there is no terminal to ask for the token on", hint="Give a file, or - and a pipe.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)  # rather no token than one on the screen
            return getpass.getpass("Token: ")
    except (EOFError, getpass.GetPassWarning):
        raise ConfigurationError("no token was given", hint="Give a file, or - and a pipe.") from None


def _not_a_token(what: str) -> ConfigurationError:
    return ConfigurationError(what, where="token", hint=_AGAIN)
