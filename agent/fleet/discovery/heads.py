"""Finding heads, for programs that want to talk to one over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from agent import paths
from agent.address import DEFAULT_HOST, url_at
from agent.fleet.discovery.discovery import Announcement, Discovery
from agent.fleet.discovery.interfaces import own_addresses
from agent.fleet.discovery.reach import candidates
from agent.fleet.head.one_head import HeadNote, running_head
from shards.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class FoundHead:
    """A head that says it is there. Nothing of it is proven unless it is this user's own, on this PC."""

    name: str
    """Of its fleet."""
    fleet: str
    """The fleet's public key."""
    version: str
    urls: tuple[str, ...]
    """Where its HTTP API may answer, best first; none: other PCs cannot reach it."""


def find_heads(seconds: float, folder: Path | None = None) -> tuple[FoundHead, ...]:
    """Who is there: first this user's own head, then those that announce themselves on the network, by name.

    Anybody on the network can announce anything, so an API key is for a head on this PC, or one that a person has
    chosen.

    Args:
        seconds: How long to listen, which takes some two for those of a network to be heard; 0: not at all.
        folder: This user's settings; None: where they are.
    """
    here = None
    with suppress(ConfigurationError):  # a note that is not the user's own alone is nobody's
        here = running_head(folder or paths.config_folder())
    heard: Sequence[Announcement] = ()
    if seconds > 0:
        with Discovery(None, lambda others: None) as discovery:
            sleep(seconds)
            heard = discovery.others
    return heads(here, heard)


def heads(here: HeadNote | None, heard: Sequence[Announcement]) -> tuple[FoundHead, ...]:
    """The heads among those that were heard, and the one of this user on this PC, each once."""
    own = frozenset(own_addresses())
    found: dict[str, FoundHead] = {}
    for other in sorted(heard, key=lambda other: (other.name, other.fleet)):
        if other.role == "head" and other.fleet:
            known = found.get(other.fleet)
            urls = (*(known.urls if known else ()), *_urls(other, own))
            found[other.fleet] = FoundHead(other.name, other.fleet, other.version, tuple(dict.fromkeys(urls)))
    if here is None or not here.url:
        return tuple(found.values())
    others = found.pop(here.fleet, None)
    urls = (here.url, *(others.urls if others else ()))
    first = FoundHead(here.name, here.fleet, here.version, tuple(dict.fromkeys(urls)))
    return first, *found.values()


def _urls(head: Announcement, own: frozenset[str]) -> list[str]:
    if head.api is None:
        return []
    hosts = [address for address in candidates(head.addresses) if "%" not in address]  # URLs have no place for scopes
    if hosts and own.issuperset(hosts):  # another user's, on this PC
        hosts.insert(0, DEFAULT_HOST)
    return [url_at(host, head.api) for host in hosts]
