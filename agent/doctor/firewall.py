"""Firewalls: whether one is on, and its symptoms. Only another PC can tell whether it gets through."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from agent.doctor.check import Check
from agent.doctor.interfaces import Interface, interfaces
from agent.fleet.node.system import command, powershell

_TOPIC = "firewall"
_OPEN_ZONES = ("trusted", "FedoraWorkstation")
"""firewalld's zones that let ports from 1025 on through."""
_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Firewall:
    """Facts."""

    interfaces: tuple[Interface, ...] = ()
    unreachable: tuple[str, ...] = ()
    """Own addresses that can't be connected to even from here."""
    ufw: bool = False
    firewalld_zone: str | None = None
    """Its default zone; None: it does not run."""
    input_dropped: bool = False
    """A rule set of nftables drops what is not allowed."""
    public_networks: tuple[str, ...] = ()
    """Windows: interfaces whose network counts as public."""


def check() -> list[Check]:
    """Look at this PC."""
    on = interfaces()
    unreachable = tuple(interface.address for interface in on if not _connects(interface.address))
    if sys.platform == "win32":
        profiles = powershell(
            'Get-NetConnectionProfile | Select InterfaceAlias,@{n="Category";e={"$($_.NetworkCategory)"}}'
        )
        public = tuple(str(each["InterfaceAlias"]) for each in profiles if each.get("Category") == "Public")
        return judge(Firewall(on, unreachable, public_networks=public))
    zone = command("firewall-cmd", "--get-default-zone") if command("firewall-cmd", "--state") else None
    rules = command("nft", "list", "ruleset") if os.geteuid() == 0 else None
    return judge(
        Firewall(
            on,
            unreachable,
            ufw=_ufw_is_on(),
            firewalld_zone=zone.strip() if zone else None,
            input_dropped=any("hook input" in line and "policy drop" in line for line in (rules or "").splitlines()),
        )
    )


def judge(firewall: Firewall) -> list[Check]:
    """Whether other PCs may be kept out. Stages choose their ports freely, so a network is let in, not a port."""
    checks = [
        Check(
            _TOPIC,
            "fault",
            f"a connection to this PC's own address {address} does not arrive",
            "Let TCP connections from your own network through this PC's firewall.",
        )
        for address in firewall.unreachable
    ]
    checks += [
        Check(
            _TOPIC,
            "warning",
            f"Windows takes the network of {name!r} for a public one, and lets no other PC in",
            f'At home: Set-NetConnectionProfile -InterfaceAlias "{name}" -NetworkCategory Private (as administrator).',
        )
        for name in firewall.public_networks
    ]
    networks = [interface.network for interface in firewall.interfaces] or ["YOUR-NETWORK"]
    active = []
    if firewall.ufw:
        active.append(("ufw", " && ".join(f"sudo ufw allow from {network}" for network in networks)))
    if firewall.firewalld_zone is not None and firewall.firewalld_zone not in _OPEN_ZONES:
        sources = " ".join(f"--add-source={network}" for network in networks)
        step = f"sudo firewall-cmd --permanent --zone=trusted {sources} && sudo firewall-cmd --reload"
        active.append((f"firewalld (zone {firewall.firewalld_zone})", step))
    if firewall.input_dropped and not active:
        active.append(("nftables", f"accept connections from {', '.join(networks)} in its input chain"))
    checks += [
        Check(_TOPIC, "warning", f"{name} is on and may keep other PCs out", f"If it is your own network: {step}")
        for name, step in active
    ]
    return checks or [Check(_TOPIC, "ok", "none is known to be in the way")]


def _connects(address: str) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind((address, 0))
            listener.listen(1)
            with socket.create_connection(listener.getsockname(), timeout=_SECONDS):
                return True
        except OSError:
            return False


def _ufw_is_on() -> bool:
    try:
        lines = Path("/etc/ufw/ufw.conf").read_text("utf-8").splitlines()
    except OSError:
        return False
    return any(line.replace(" ", "").lower() == "enabled=yes" for line in lines)
