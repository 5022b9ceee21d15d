"""Asking the operating system: its own tools, called with argument lists and a time limit."""

from __future__ import annotations

import json
import subprocess
from typing import Any

_SECONDS = 8.0


def command(*arguments: str) -> str | None:
    """What a tool prints; None if there is no such tool, it fails, or takes too long."""
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def powershell(query: str) -> list[dict[str, Any]]:
    """The objects a query of Windows' PowerShell gives; none if it gives nothing, or fails.

    Args:
        query: A fixed text of ours, never anything a user or another PC said.
    """
    script = f"[Console]::OutputEncoding = [Text.Encoding]::UTF8; ConvertTo-Json -Compress @({query})"
    try:
        found = json.loads(command("powershell.exe", "-NoProfile", "-NonInteractive", "-Command", script) or "[]")
    except ValueError:
        return []
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def display_adapters() -> list[tuple[str, str | None]]:
    """Name and driver version of Windows' display adapters."""
    found = powershell("Get-CimInstance Win32_VideoController -Property Name,DriverVersion | Select Name,DriverVersion")
    return [(str(entry["Name"]), entry.get("DriverVersion")) for entry in found if entry.get("Name")]
