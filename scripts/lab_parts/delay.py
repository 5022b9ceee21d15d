"""Holds every Ethernet frame between two interfaces for a time: a longer cable, not a slower one.

    python3 delay.py OUTWARD INWARD MILLISECONDS

What arrives at OUTWARD leaves INWARD after the delay; the other direction is not delayed. Frames that wait do not hold
up each other, so flows overlap as on a real line and the rate stays what it is. Each line on stdin is a new delay in
milliseconds; frames never overtake each other. It ends with stdin. Needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import time
from collections import deque

_MAX_FRAME = 1 << 17
"""A frame may be a TCP segment of 64 KiB that the sender left for the network card to cut."""
_SOCKET_BYTES = 1 << 26
_MAX_WAITING = 1 << 28
"""Bytes held; beyond that the socket's buffer fills up, and then frames are lost, as in a switch."""
_AT_ONCE = 64

_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_ETH_P_ALL = 3
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_PACKET_ADD_MEMBERSHIP, _PACKET_MR_PROMISC = 1, 1


class Direction:
    """Frames on their way from one interface to another, in order."""

    def __init__(self, source: socket.socket, sink: socket.socket, seconds: float) -> None:
        self.source = source
        self.seconds = seconds
        self._sink = sink
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._last = 0.0

    @property
    def is_full(self) -> bool:
        """Whether nothing more can be held."""
        return self._bytes >= _MAX_WAITING

    @property
    def next_at(self) -> float:
        """When the next frame is to leave, on the monotonic clock."""
        return self._waiting[0][0] if self._waiting else float("inf")

    def receive(self) -> None:
        """Take what has arrived."""
        for _ in range(_AT_ONCE):
            try:
                frame = self.source.recv(_MAX_FRAME)
            except OSError:  # nothing more, or the link is down
                return
            self._last = max(self._last, time.monotonic() + self.seconds)
            self._waiting.append((self._last, frame))
            self._bytes += len(frame)

    def send(self) -> None:
        """Let go of the frames whose time has come."""
        while self.next_at <= time.monotonic():
            _, frame = self._waiting.popleft()
            self._bytes -= len(frame)
            with contextlib.suppress(OSError):  # the link is down or its queue is full: the frame is lost
                self._sink.send(frame)


def run(outward: str, inward: str, seconds: float) -> None:
    """Move frames between two interfaces until stdin ends."""
    one, other = _open(outward), _open(inward)
    delayed = Direction(one, other, seconds)
    directions = (delayed, Direction(other, one, 0.0))
    stdin = sys.stdin.fileno()
    print("ready", flush=True)
    while True:
        pause = min(direction.next_at for direction in directions) - time.monotonic()
        sources = {d.source.fileno(): d for d in directions if not d.is_full}
        timeout = None if pause == float("inf") else max(0.0, pause)
        readable, _, _ = select.select([stdin, *sources], [], [], timeout)  # its time-out is exact to microseconds
        for descriptor in readable:
            if descriptor in sources:
                sources[descriptor].receive()
            elif lines := os.read(stdin, 4096).split():
                delayed.seconds = float(lines[-1]) / 1e3
            else:
                return
        for direction in directions:
            direction.send()


def _open(interface: str) -> socket.socket:
    """A socket for all frames that arrive at an interface; each comes with what is left to do for its checksum."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    opened.setblocking(False)
    opened.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    opened.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    for option in (_SO_RCVBUFFORCE, _SO_SNDBUFFORCE):
        with contextlib.suppress(PermissionError):  # in a user's namespace the usual size has to do
            opened.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)
    opened.bind((interface, _ETH_P_ALL))
    promiscuous = struct.pack("iHH8s", socket.if_nametoindex(interface), _PACKET_MR_PROMISC, 0, b"")
    opened.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, promiscuous)
    return opened


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], float(sys.argv[3]) / 1e3)
