"""The IPv4 networks this PC is on."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

import psutil

from agent.fleet.discovery import interfaces as known


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface that is up, with its first IPv4 address."""

    name: str
    address: str
    network: str
    """In CIDR notation."""


def interfaces() -> tuple[Interface, ...]:
    """Those to other PCs; networks of containers, virtual machines and VPNs only where there are no others."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = []
    for name, addresses in psutil.net_if_addrs().items():
        for entry in addresses:
            if name in up and entry.family == socket.AF_INET and not ipaddress.ip_address(entry.address).is_loopback:
                network = ipaddress.ip_network(f"{entry.address}/{entry.netmask or 32}", strict=False)
                found.append(Interface(name, entry.address, str(network)))
                break
    real = [interface for interface in found if not known.Interface(interface.name, ()).is_virtual]
    return tuple(real or found)
