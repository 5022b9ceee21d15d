"""Bytes for people."""

from __future__ import annotations


def amount(count: int) -> str:
    """As GB, or MB below one."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
