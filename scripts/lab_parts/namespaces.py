"""Namespaces that live as long as whoever made them, however that one ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

import psutil

_PATIENCE_SECONDS = 10.0

_KEEPER = 'test -z "$1" || echo "$1" >/proc/sys/kernel/hostname; trap "" CHLD; echo; exec cat >/dev/null'
"""Process 1 of a namespace: lives until its stdin ends. It ignores the ends of its children: no zombies."""


class LabError(Exception):
    """A lab cannot be made, or something in it did not come about."""


class Namespace:
    """Network and process numbers of their own, held by one process; a host has a host name and /proc as well.

    The holder reads a pipe whose other end only this process has. When this process ends, even by SIGKILL, the holder
    ends too. It is process 1 of its namespace, so the kernel then kills all others in it, and takes the network apart
    with its last process. Hosts are inside the hub's namespace: they go with it.
    """

    def __init__(self, name: str = "", inside: Namespace | None = None) -> None:
        own = ["--net", "--pid", "--fork"]
        self._user: list[str] = []
        if os.geteuid() != 0:
            self._user = ["--user", "--preserve-credentials"]
            own += [] if inside else ["--user", "--map-root-user"]
        if inside:
            own += ["--mount", "--mount-proc", "--uts"]
        within = inside.enter("pid") if inside else []
        command = [*within, "unshare", *own, "--", "sh", "-c", _KEEPER, "sh", name]
        self._keeper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert self._keeper.stdout is not None
        if not self._keeper.stdout.readline():
            raise LabError(f"no namespace for {name or 'the bridge'}: {self._refusal()}")
        self.pid = psutil.Process(self._keeper.pid).children(recursive=True)[-1].pid
        """The holder, as the machine numbers it."""

    def enter(self, *kinds: str) -> list[str]:
        """What goes before a command so that it runs in these namespaces: net, pid, mount, uts; or other options."""
        return ["nsenter", f"--target={self.pid}", *self._user, *(f"--{kind}" for kind in kinds), "--"]

    def batch(self, tool: str, lines: Sequence[str]) -> None:
        """Run commands of `ip` or `tc` on this network.

        Raises:
            LabError: with what the tool said.
        """
        done = subprocess.run(
            [*self.enter("net"), tool, "-batch", "-"],
            input="\n".join(lines) + "\n", capture_output=True, encoding="utf-8", start_new_session=True,
        )  # fmt: skip
        if done.returncode:
            raise LabError(f"{tool} failed: {done.stderr.strip()} (of: {'; '.join(lines)})")

    def close(self) -> None:
        """End it with everything in it; returns when all of its processes are gone."""
        for stream in (self._keeper.stdin, self._keeper.stdout, self._keeper.stderr):
            if stream is not None:
                stream.close()
        self._keeper.wait(_PATIENCE_SECONDS)

    def _refusal(self) -> str:
        assert self._keeper.stderr is not None
        said = self._keeper.stderr.read().decode(errors="replace").strip()
        self._keeper.wait(_PATIENCE_SECONDS)
        return said or "the process that holds it ended at once"


def require_tools() -> None:
    """Check that this machine can have a lab.

    Raises:
        LabError: it cannot, and why.
    """
    if sys.platform != "linux":
        raise LabError("a lab is made of Linux network namespaces; this is another system")
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing = [tool for tool in ("ip", "tc", "unshare", "nsenter") if not shutil.which(tool, path=search)]
    if missing:
        raise LabError(f"not installed: {', '.join(missing)} (on Debian and Ubuntu: apt install iproute2 util-linux)")
