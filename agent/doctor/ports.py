"""The ports a head listens on by default."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from agent.address import DEFAULT_CONTROL_PORT, DEFAULT_PORT
from agent.doctor.check import Check

_TOPIC = "ports"
_LONGEST = 100
_PORTS = {DEFAULT_PORT: "the API", DEFAULT_CONTROL_PORT: "the fleet", DEFAULT_CONTROL_PORT + 1: "joining"}


@dataclass(frozen=True, slots=True)
class Taken:
    """Who has a port; what the system does not tell is None."""

    pid: int | None = None
    command: str | None = None
    is_ours: bool = False
    """It is an edge-agent."""


def check() -> list[Check]:
    """Look at this PC."""
    return [judge(port, purpose, _taken(port)) for port, purpose in _PORTS.items()]


def judge(port: int, purpose: str, taken: Taken | None) -> Check:
    """Whether a head can have it; `taken` is None if nobody has it."""
    if taken is None:
        return Check(_TOPIC, "ok", f"{port} ({purpose}) is free")
    by = f"process {taken.pid} ({taken.command})" if taken.command else "a program this user may not see"
    if taken.is_ours:
        return Check(_TOPIC, "ok", f"{port} ({purpose}) is in use by edge-agent, process {taken.pid}")
    if port == DEFAULT_PORT:
        step = "End it, or serve with another --port."
        return Check(_TOPIC, "warning", f"{port} ({purpose}) is in use by {by}", step)
    return Check(_TOPIC, "ok", f"{port} ({purpose}) is in use by {by}; a head takes another one by itself")


def _taken(port: int) -> Taken | None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # Windows: see other programs' ports
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:  # Unix: do not see connections that are long closed
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return _owner(port)
    return None


def _owner(port: int) -> Taken:
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                command = psutil.Process(connection.pid).cmdline()
                is_ours = any(Path(argument).stem == "edge-agent" for argument in command[:2])  # with Python or without
                return Taken(connection.pid, " ".join(command)[:_LONGEST], is_ours)
    except psutil.Error:
        pass  # another user's; macOS tells nobody but root
    return Taken()
