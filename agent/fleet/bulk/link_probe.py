"""Measures the way to another node with echoes over its bulk socket."""

from __future__ import annotations

import statistics
import time

from agent.fleet.bulk.bulk_client import BulkClient, Source
from agent.fleet.bulk.bulk_messages import SLICE_BYTES, WINDOW, WantEcho
from agent.fleet.trust.sockets import Context
from pipeline.link import KeyPair
from shards.errors import WireError

_ECHOES = 20
_ENOUGH_SECONDS = 0.1
"""A burst that takes this long says more than the noise around it."""

_LARGEST_BURST = 32 * 2**20
_ANSWER_SECONDS = 10.0


def probe(address: str, port: int, server_key: str, keys: KeyPair) -> tuple[float, float]:
    """Measure the way to the bulk server at an address.

    Returns:
        Milliseconds one way (half of a round trip's median), and bytes per second from there to here.

    Raises:
        WireError: there is no answer.
        ConfigurationError: the address is none.
    """
    context = Context()
    try:
        client = BulkClient(context, keys, Source(server_key, "the node", address, port))
        try:
            client.call(WantEcho(size=0), _ANSWER_SECONDS)  # connects, too
            round_trip = statistics.median(_burst(client, 0) for _ in range(_ECHOES))
            return round_trip * 500, _rate(client, round_trip)
        finally:
            client.close()
    finally:
        context.term()


def _rate(client: BulkClient, round_trip: float) -> float:
    size = SLICE_BYTES
    while True:
        elapsed = _burst(client, size)
        carrying = max(elapsed - round_trip, elapsed / 2)  # the first byte takes a round trip to come
        if carrying > _ENOUGH_SECONDS or size == _LARGEST_BURST:
            return size / carrying
        size *= 2


def _burst(client: BulkClient, size: int) -> float:
    """Seconds until `size` bytes are here, which come in slices; 0 bytes are one empty answer."""
    waiting = [SLICE_BYTES] * (size // SLICE_BYTES) or [0]
    unanswered = 0
    began = time.perf_counter()
    while waiting or unanswered:
        while waiting and unanswered < WINDOW:
            client.ask(WantEcho(size=waiting.pop()))
            unanswered += 1
        received = client.receive(_ANSWER_SECONDS)
        if received is None:
            raise WireError(f"no answer within {_ANSWER_SECONDS:.0f} s", where=str(client.source))
        answer, _ = received
        if answer.refusal is not None:
            raise WireError(answer.refusal, where=str(client.source))
        unanswered -= 1
    return time.perf_counter() - began
