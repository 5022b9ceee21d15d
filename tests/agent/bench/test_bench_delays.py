from __future__ import annotations

import socket
import threading
from pathlib import Path
from time import perf_counter

import psutil
import pytest

from agent.bench.arrivals import ClosedLoop
from agent.bench.delays import Delays, _FarStage
from agent.bench.load import run_traffic
from pipeline.chain import Chain, start_here
from pipeline.chain_times import ChainTimes
from pipeline.control import Cancel, ToStage
from pipeline.link import KeyPair, Peer
from pipeline.running import Copy, RunOptions
from pipeline.stage_child import StageChild
from shards import manifest as manifests
from shards.runtime import StageConfig

GUARD = 60.0


def links() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "delayed link"]


def test_a_link_passes_everything_on_in_order_no_sooner_than_it_should_and_ends_with_its_end() -> None:
    delays = Delays(0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(GUARD)
        peer = Peer(host="127.0.0.1", port=server.getsockname()[1], public=KeyPair.new().public)
        near_peer = delays.locate(peer)
        assert (near_peer.host, near_peer.public) == (peer.host, peer.public) and near_peer.port != peer.port
        with socket.create_connection((near_peer.host, near_peer.port), GUARD) as near, server.accept()[0] as far:
            far.settimeout(GUARD)
            began = perf_counter()
            sent = bytes(range(256)) * 4096
            near.sendall(sent)
            got = bytearray()
            while len(got) < len(sent):
                got += far.recv(1 << 16)
            assert perf_counter() - began >= 0.05
            assert bytes(got) == sent
            far.sendall(b"back")
            assert near.recv(4) == b"back"
            assert perf_counter() - began >= 0.1
            near.shutdown(socket.SHUT_RDWR)
            assert far.recv(1) == b""
    delays.close()
    assert not links()


@pytest.mark.parametrize("is_there", [True, False])
def test_links_that_nobody_uses_or_that_lead_nowhere_end(is_there: bool) -> None:
    delays = Delays(0.01)
    server = socket.create_server(("127.0.0.1", 0))
    peer = delays.locate(Peer(host="127.0.0.1", port=server.getsockname()[1], public=KeyPair.new().public))
    if not is_there:
        server.close()
        with socket.create_connection((peer.host, peer.port), GUARD) as near:
            assert near.recv(1) == b""
    delays.close()
    assert not links()
    server.close()


def test_what_is_said_of_void_guesses_is_on_its_way_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    came = threading.Event()
    heard: list[tuple[ToStage, float]] = []

    def tell(_stage: StageChild, message: ToStage) -> None:
        heard.append((message, perf_counter()))
        came.set()

    monkeypatch.setattr(StageChild, "tell", tell)
    stage = _FarStage.__new__(_FarStage)
    stage._delays, stage._is_local = Delays(0.05), False
    began = perf_counter()
    stage.tell(Cancel(branches={3: 1}))
    assert came.wait(GUARD)
    [(message, time)] = heard
    assert message == Cancel(branches={3: 1}) and time - began >= 0.05


def test_a_chain_over_long_links_says_the_same_and_leaves_nothing(tiny_package: Path) -> None:
    configs = [
        StageConfig(package=tiny_package, first_layer=first, end_layer=first + 2, mode="exact", threads=1)
        for first in (0, 2)
    ]
    context = manifests.read(tiny_package).facts.context_length
    before = set(psutil.Process().children())

    def answers(delays: Delays | None) -> tuple[tuple[int, ...], ...]:
        chain = Chain.start(
            configs,
            max_rows=64,
            max_sequences=4,
            start_stage=delays.start_stage if delays else start_here,
            locate=delays.locate if delays else lambda peer: peer,
        )
        copy = Copy.start(chain, context, RunOptions(stages=2, max_sequences=4), ChainTimes())
        try:
            return run_traffic(copy.head, ClosedLoop(2, 4), [(1, 2, 3), (4, 5)], 12).tokens
        finally:
            copy.close()

    delays = Delays(0.005)
    far = answers(delays)
    assert len(delays._relays) == 4  # from the head, between the stages, back, and the echo
    delays.close()
    assert far == answers(None)
    assert not links()
    assert set(psutil.Process().children()) <= before
