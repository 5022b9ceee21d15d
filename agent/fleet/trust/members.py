"""Whom the head lets in, and whom it has shut out."""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from zmq.utils import z85

from agent.fleet.control.messages import Key, Name
from agent.fleet.trust import stored
from agent.fleet.trust.identity import LONGEST_NAME, clean_name
from agent.fleet.trust.stored import Stored
from shards.errors import RequestError

MOST_MEMBERS = 256

_FILE = "members.json"
_KEY_BYTES = 32
_CODE_BYTES = 5
_CODE_ROUNDS = 20_000


def _checked(key: str) -> str:
    raw_key(key)
    return key


PublicKey = Annotated[Key, AfterValidator(_checked)]
"""A key that is not only as long as one."""


class Member(Stored):
    """A node that may come in."""

    key: PublicKey
    name: Name
    since: datetime


class _Members(Stored):
    members: tuple[Member, ...] = Field((), max_length=MOST_MEMBERS)
    forgotten: tuple[Member, ...] = Field((), max_length=MOST_MEMBERS, description="latest last")


class Members:
    """The members of a fleet, kept in a file; for any thread.

    Args:
        folder: Where the file is.
        fleet: The fleet's public key.

    Raises:
        ConfigurationError: the file cannot be read, is damaged, or others can read it.
    """

    def __init__(self, folder: Path, fleet: str) -> None:
        self.fleet = fleet
        self._path = folder / _FILE
        self._lock = threading.Lock()
        found = stored.read(self._path, _Members) or _Members()
        # never changed, only replaced as a whole: so they can be read without the lock
        self._members = {member.key: member for member in found.members}
        self._forgotten = {member.key: member for member in found.forgotten}

    def is_member(self, key: str) -> bool:
        """Whether the node with this public key may come in."""
        return key in self._members

    def is_forgotten(self, key: str) -> bool:
        """Whether it was a member and was shut out."""
        return key in self._forgotten

    @property
    def members(self) -> tuple[Member, ...]:
        """All members, by name."""
        return tuple(sorted(self._members.values(), key=lambda member: member.name.casefold()))

    def name_of(self, key: str) -> str | None:
        """What a member is called."""
        member = self._members.get(key)
        return member.name if member else None

    def describe(self) -> list[dict[str, Any]]:
        """All members, as JSON data."""
        return [member.model_dump(mode="json") | {"code": code_of(self.fleet, member.key)} for member in self.members]

    def add(self, key: str, name: str) -> Member:
        """Let a node in, or hear that a member is called otherwise now.

        Its name gets a suffix where another has it: `pc`, `pc-2`, ...

        Raises:
            RequestError: the fleet is full.
            ConfigurationError: the file cannot be written; then nothing has changed.
        """
        with self._lock:
            old = self._members.get(key)
            if old is None and len(self._members) >= MOST_MEMBERS:
                raise RequestError(
                    f"a fleet has {MOST_MEMBERS} members at most", hint="Forget one: edge-agent forget NODE"
                )
            wanted = clean_name(name)
            if old is not None and re.fullmatch(re.escape(wanted) + r"(-\d+)?", old.name):
                return old
            others = (member.name for member in self._members.values() if member.key != key)
            since = old.since if old else datetime.now(UTC)
            member = Member(key=key, name=_unique(wanted, others), since=since)
            self._store(self._members | {key: member}, _without(self._forgotten, key))
            return member

    def find(self, node: str) -> Member:
        """The member with this name, key or code.

        Raises:
            RequestError: there is none, or more than one.
        """
        found = [
            member
            for member in self._members.values()
            if node in (member.key, member.name) or same_code(node, code_of(self.fleet, member.key))
        ]
        if len(found) != 1:
            names = ", ".join(sorted(member.name for member in found or self._members.values()))
            raise RequestError(
                f"several members are meant by {node!r}" if found else f"no member is called {node!r}",
                where="node",
                hint=f"There are: {names}." if names else "The fleet has no members.",
            )
        return found[0]

    def forget(self, node: str) -> Member:
        """Shut out the member with this name, key or code.

        Raises:
            RequestError: there is none, or more than one.
            ConfigurationError: the file cannot be written; then nothing has changed.
        """
        with self._lock:
            member = self.find(node)
            forgotten = [*_without(self._forgotten, member.key).values(), member][-MOST_MEMBERS:]
            self._store(_without(self._members, member.key), {old.key: old for old in forgotten})
            return member

    def _store(self, members: dict[str, Member], forgotten: dict[str, Member]) -> None:
        stored.write(self._path, _Members(members=tuple(members.values()), forgotten=tuple(forgotten.values())))
        self._members, self._forgotten = members, forgotten


@lru_cache(maxsize=2 * MOST_MEMBERS)
def code_of(fleet: str, key: str) -> str:
    """The short code of a node in a fleet, `ABCD-EFGH`, from the public keys of both (Z85).

    Both sides show it, so that a person can see that the node that waits is the one meant. It has 40 bits only, so it
    is slow to compute (PBKDF2): to find a key with the code of another takes some 10^16 hashes.

    Raises:
        ValueError: one of them is no key.
    """
    digest = hashlib.pbkdf2_hmac("sha256", raw_key(key), raw_key(fleet), _CODE_ROUNDS, _CODE_BYTES)
    code = base64.b32encode(digest).decode()
    return f"{code[:4]}-{code[4:]}"


def same_code(typed: str, code: str) -> bool:
    """Whether a person means this code, however it is written."""
    return "".join(typed.split()).replace("-", "").upper() == code.replace("-", "")


def raw_key(key: str) -> bytes:
    """The 32 bytes of a key in Z85; raises ValueError if it is none."""
    try:
        raw = z85.decode(key.encode())
    except (ValueError, KeyError, struct.error):
        raw = b""
    if len(raw) != _KEY_BYTES:
        raise ValueError("this is no key")
    return raw


def _unique(name: str, others: Iterable[str]) -> str:
    """The name, or the name with a number, that no other has; names differ by more than upper and lower case."""
    taken = {other.casefold() for other in others}
    unique, number = name, 1
    while unique.casefold() in taken:
        number += 1
        suffix = f"-{number}"
        unique = clean_name(name.encode()[: LONGEST_NAME - len(suffix)].decode("utf-8", "ignore")) + suffix
    return unique


def _without(members: dict[str, Member], key: str) -> dict[str, Member]:
    return {other: member for other, member in members.items() if other != key}
