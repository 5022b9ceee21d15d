from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bulk_fleet import BulkFleet
from fake_packages import make_package

from agent.fleet.bulk import link_probe
from agent.fleet.bulk.bulk_client import Source
from pipeline.link import KeyPair
from shards.errors import ConfigurationError, WireError


@pytest.fixture
def fleet() -> Iterator[BulkFleet]:
    fleet = BulkFleet()
    yield fleet
    fleet.close()


@pytest.fixture
def source(fleet: BulkFleet, tmp_path: Path) -> Source:
    make_package(tmp_path / "package", 100)
    return fleet.serve(tmp_path / "package")


def test_measures_latency_and_rate(fleet: BulkFleet, source: Source) -> None:
    latency_ms, rate = link_probe.probe(source.address, source.port, source.key, fleet.keys)
    assert 0 < latency_ms < float("inf") and 0 < rate < float("inf")


def test_is_not_held_back_by_the_pace_of_downloads(fleet: BulkFleet, source: Source) -> None:
    pace = fleet.servers["kitchen"].pace
    pace.busy, pace.rate = True, 1.0
    latency_ms, rate = link_probe.probe(source.address, source.port, source.key, fleet.keys)
    assert latency_ms > 0 and rate > 1.0


@pytest.mark.parametrize("stranger", ["server", "client"])
def test_the_keys_must_be_known(
    fleet: BulkFleet, source: Source, stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_probe, "_ANSWER_SECONDS", 1.0)
    server_key = KeyPair.new().public if stranger == "server" else source.key
    keys = KeyPair.new() if stranger == "client" else fleet.keys
    with pytest.raises(WireError, match="no answer within 1 s"):
        link_probe.probe(source.address, source.port, server_key, keys)


def test_no_address(fleet: BulkFleet) -> None:
    with pytest.raises(ConfigurationError):
        link_probe.probe("not an address", 1, KeyPair.new().public, fleet.keys)
