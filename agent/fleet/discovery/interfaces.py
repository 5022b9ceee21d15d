"""This PC's IP addresses, in the order in which others should try them."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_VIRTUAL = re.compile(
    # containers and virtual machines; a Hyper-V switch with a name of the user's own may be the way to the LAN
    r"docker|podman|br-[0-9a-f]{12}$|veth(?!ernet)|virbr|lxcbr|lxdbr|incusbr|cni|flannel|cali|vmnet|vboxnet"
    r"|virtualbox|vmware|vethernet \((wsl|default switch|nat)"
    # private networks over others
    r"|tun|tap|utun|wg|ppp|ipsec|tailscale|zerotier|zt[0-9a-z]{8}|wireguard|openvpn|nordlynx|proton|hamachi",
    re.IGNORECASE,
)
_RADIO = re.compile(r"wl|ww|wi-?fi|wireless|drahtlos|cellular|mobil|bluetooth|bnep", re.IGNORECASE)

_MOST = 32
"""Addresses told to others."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface that is up."""

    name: str
    addresses: tuple[str, ...]
    is_point_to_point: bool = False
    speed: int = 0
    """Mbit/s; 0 is unknown. Radio has it only on paper."""

    @property
    def is_virtual(self) -> bool:
        """Whether it looks like one of a VPN, of containers or of virtual machines."""
        return self.is_point_to_point or _VIRTUAL.match(self.name) is not None

    @property
    def is_radio(self) -> bool:
        """Whether it looks like one without a wire."""
        return _RADIO.match(self.name) is not None


def own_addresses() -> tuple[str, ...]:
    """The addresses others may reach this PC at, best first; without IPv6 scopes, which mean nothing elsewhere."""
    return ordered(_interfaces())[:_MOST]


def ordered(interfaces: Iterable[Interface]) -> tuple[str, ...]:
    """The interfaces' addresses: those of local networks, public ones, those of virtual networks, link-local ones.

    Among equals, wire comes before radio, faster before slower, IPv4 before IPv6. IPv6 link-local addresses are left
    out where an interface has others: who connects to one must guess an interface.
    """
    ranked: list[tuple[tuple[int, bool, int, int], str]] = []
    for interface in interfaces:
        known = [address for text in interface.addresses if (address := _parsed(text)) is not None]
        better = [address for address in known if not (address.version == 6 and address.is_link_local)]
        for address in better or ([] if interface.is_virtual else known):
            rank = (_rank(address, interface), interface.is_radio, -interface.speed, address.version)
            ranked.append((rank, str(address)))
    ranked.sort(key=lambda pair: pair[0])  # stable: otherwise as the system has them
    return tuple(dict.fromkeys(text for _, text in ranked))


def _rank(address: IPAddress, interface: Interface) -> int:
    if address.is_link_local:
        return 2 + address.version  # last, IPv6 after IPv4
    if interface.is_virtual:
        return 2
    return 0 if address.is_private else 1


def _parsed(text: str) -> IPAddress | None:
    """An address another PC could use, or None."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return None if address.is_loopback or address.is_unspecified or address.is_multicast else address


def _interfaces() -> list[Interface]:
    states = psutil.net_if_stats()
    found = []
    for name, addresses in psutil.net_if_addrs().items():
        state = states.get(name)
        if state is None or not state.isup:
            continue
        flags = state.flags.split(",")  # empty on Windows
        if "loopback" in flags:
            continue
        texts = tuple(one.address for one in addresses if one.family in (socket.AF_INET, socket.AF_INET6))
        found.append(Interface(name, texts, "pointopoint" in flags, state.speed))
    return found
