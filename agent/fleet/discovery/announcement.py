"""What an agent tells its network about itself, as the TXT record of a DNS-SD service (RFC 6763, section 6)."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from zeroconf import ServiceInfo

from agent.fleet.control import versions
from agent.fleet.control.messages import PROTOCOL, Port
from agent.fleet.trust.identity import clean_name
from shards.errors import WireError

SERVICE = "_edge-agent._tcp.local."

_LONGEST_STRING = 255
"""Bytes of a `key=value` of a TXT record."""

_ADDRESSES = "addresses"
_COUNT = "count"

Z85Key = Annotated[str, Field(pattern=r"^[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}$")]


def _is_clean(name: str) -> str:
    if name != clean_name(name):
        raise ValueError("not letters, digits, '-', '_' and '.' alone, or too long")
    return name


def _is_elsewhere(text: str) -> str:
    address = ipaddress.ip_address(text)
    if address.is_loopback or address.is_multicast or address.is_unspecified or "%" in text:
        raise ValueError("not an address of another PC")
    return str(address)


class Announcement(BaseModel):
    """An agent, as it presents itself. Nothing of it is proven."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Z85Key = Field(description="the agent's public key, its identity")
    fleet: Z85Key | Literal[""] = Field("", description="public key of its fleet; empty: it is in none")
    role: Literal["head", "node"]
    name: Annotated[str, AfterValidator(_is_clean)] = Field(description="the fleet's if it is a head")
    protocol: int = Field(PROTOCOL, ge=0, le=65535, description="version of what it says on its sockets")
    version: str = Field(default_factory=lambda: versions.own().edge_agent, pattern=r"^[0-9A-Za-z.+!_-]{1,40}$")
    control: Port | None = Field(None, description="a head's")
    door: Port | None = Field(None, description="a head's")
    bulk: Port | None = None
    api: Port | None = Field(None, description="of a head's HTTP API, if other PCs can reach that")
    addresses: tuple[Annotated[str, AfterValidator(_is_elsewhere)], ...] = Field(
        (), max_length=32, description="best first"
    )

    def to_text(self, count: int) -> dict[str, str]:
        """The properties of the TXT record; addresses it has no room for, the last ones, are left out.

        Args:
            count: Grows with each change, so that no record is like an earlier one: caches take what they had
                before for an echo, not for news.
        """
        values = self.model_dump(exclude_none=True, exclude={_ADDRESSES})
        room = _LONGEST_STRING - len(f"{_ADDRESSES}=")
        joined = ",".join(self.addresses)
        if len(joined) > room:
            joined = joined[: joined.rindex(",", 0, room + 1)]
        return {key: str(value) for key, value in values.items()} | {_ADDRESSES: joined, _COUNT: str(count)}

    @classmethod
    def from_text(cls, text: bytes) -> Announcement:
        """Read a TXT record, from anybody. What a later version may say in addition is skipped.

        Raises:
            WireError: it is not an announcement, or has no address.
        """
        service = ServiceInfo(SERVICE, f"any.{SERVICE}", properties=text)
        values: dict[str, object] = {
            key: value or "" for key, value in service.decoded_properties.items() if key in cls.model_fields
        }
        values[_ADDRESSES] = str(values.get(_ADDRESSES, "")).split(",")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            raise WireError(f"{first['loc'][0]}: {first['msg']}", where="announcement") from None
