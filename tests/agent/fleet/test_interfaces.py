from __future__ import annotations

import ipaddress
import socket
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.fleet.discovery import interfaces
from agent.fleet.discovery.interfaces import Interface, ordered, own_addresses


def test_local_networks_come_first_and_link_local_addresses_last() -> None:
    assert ordered(
        [
            Interface("docker0", ("172.17.0.1",)),
            Interface("usb0", ("169.254.7.7",)),
            Interface("tailscale0", ("100.101.1.1", "fd7a:115c:a1e0::1"), is_point_to_point=True),
            Interface("eth0", ("2a00:1450::7", "fd00::7", "fe80::7%eth0", "192.168.1.7")),
            Interface("eth1", ("8.8.4.4",)),
        ]
    ) == (
        "192.168.1.7",
        "fd00::7",
        "8.8.4.4",
        "2a00:1450::7",
        "172.17.0.1",
        "100.101.1.1",
        "fd7a:115c:a1e0::1",
        "169.254.7.7",
    )


def test_a_wire_comes_before_radio() -> None:
    radio = Interface("Wi-Fi", ("192.168.1.9",), speed=2400)
    slow = Interface("Ethernet", ("192.168.1.8", "fd00::8"), speed=100)
    fast = Interface("Ethernet 2", ("192.168.1.7", "fd00::7"), speed=1000)
    assert ordered([radio, slow, fast]) == ("192.168.1.7", "fd00::7", "192.168.1.8", "fd00::8", "192.168.1.9")


def test_an_ipv6_link_local_address_counts_where_there_is_no_other() -> None:
    cable = Interface("eth0", ("fe80::1%eth0",))
    assert ordered([cable]) == ("fe80::1",)
    assert ordered([Interface("eth0", ("fe80::1%eth0", "fe80::2%eth0"))]) == ("fe80::1", "fe80::2")
    assert ordered([Interface("eth0", ("fe80::1%eth0", "169.254.1.1"))]) == ("169.254.1.1",)
    assert ordered([Interface("veth12ab", ("fe80::2%veth12ab",)), cable]) == ("fe80::1",)


@pytest.mark.parametrize(
    "name",
    [
        "docker0", "br-0123456789ab", "veth9f3c", "virbr0", "vboxnet0", "wg0", "tun0", "utun4", "tailscale0",
        "ztabcdefgh", "vEthernet (WSL (Hyper-V firewall))", "vEthernet (Default Switch)", "OpenVPN TAP-Windows6",
        "VMware Network Adapter VMnet8", "VirtualBox Host-Only Network",
    ],
)  # fmt: skip
def test_virtual_interfaces_are_known_by_their_names(name: str) -> None:
    assert Interface(name, ()).is_virtual


@pytest.mark.parametrize(
    "name", ["eth0", "enp3s0", "wlan0", "wlp2s0", "br0", "bond0", "Ethernet", "Wi-Fi", "vEthernet (External)", "en0"]
)
def test_others_are_not(name: str) -> None:
    assert not Interface(name, ()).is_virtual


@given(
    st.lists(
        st.builds(
            Interface,
            st.sampled_from(["eth0", "wlan0", "docker0", "tun0"]),
            st.lists(st.ip_addresses().map(str) | st.text(max_size=5)).map(tuple),
            st.booleans(),
            st.sampled_from([0, 100, 1000]),
        )
    )
)
def test_nothing_is_listed_twice_or_useless_to_others(found: list[Interface]) -> None:
    addresses = ordered(found)
    assert len(set(addresses)) == len(addresses)
    for text in addresses:
        address = ipaddress.ip_address(text)
        assert not (address.is_loopback or address.is_multicast or address.is_unspecified)
        assert any(text in interface.addresses for interface in found)


def test_only_what_is_up_and_leads_out_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def state(isup: bool = True, flags: str = "up,broadcast,running,multicast") -> SimpleNamespace:
        return SimpleNamespace(isup=isup, flags=flags, speed=0)

    def address(text: str, family: int = socket.AF_INET) -> SimpleNamespace:
        return SimpleNamespace(address=text, family=family)

    states = {"lo": state(flags="up,loopback,running"), "eth0": state(), "eth1": state(isup=False), "tun0": state()}
    addresses = {
        "lo": [address("127.0.0.1"), address("10.9.9.9")],
        "tun0": [address("10.8.0.2")],
        "eth0": [address("aa:bb:cc:dd:ee:ff", -1), address("10.0.0.2"), address("fe80::2%eth0", socket.AF_INET6)],
        "eth1": [address("10.0.1.2")],
        "eth2": [address("10.0.2.2")],  # gone in between
    }
    monkeypatch.setattr(interfaces.psutil, "net_if_stats", lambda: states)
    monkeypatch.setattr(interfaces.psutil, "net_if_addrs", lambda: addresses)
    assert own_addresses() == ("10.0.0.2", "10.8.0.2")


def test_this_pc_has_addresses_that_can_be_bound() -> None:
    for address in own_addresses():
        if not ipaddress.ip_address(address).is_link_local:  # else it would need a scope
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as bound:
                bound.bind((address, 0))
