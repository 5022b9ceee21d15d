"""Which fleet a PC goes to, and how it gets in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_head import HOST, ScriptedHead, Statuses

from agent.address import DEFAULT_PORT
from agent.fleet.discovery.announcement import Announcement
from agent.fleet.node import joining
from agent.fleet.node.joining import Joining, JoinOptions, Place, choose
from agent.fleet.node.node_settings import NodeSettings
from agent.fleet.node.node_status import NodeStatus
from agent.fleet.trust.door import Door
from agent.fleet.trust.identity import FleetIdentity, JoinedFleet, JoinedFleets, NodeIdentity
from agent.fleet.trust.members import Members, code_of
from agent.fleet.trust.token import Token
from pipeline.link import KeyPair
from shards.errors import ConfigurationError

HOME, OFFICE = KeyPair.new().public, KeyPair.new().public


def announced(fleet: str, name: str, address: str = "192.0.2.1", control: int = 8115, door: int | None = None) -> Any:
    key = KeyPair.new().public
    return Announcement(key=key, fleet=fleet, role="head", name=name, control=control, door=door, addresses=(address,))


def joined(fleet: str, name: str, address: str = "192.0.2.9:8115") -> JoinedFleet:
    return JoinedFleet(fleet=fleet, name=name, address=address)


AT_HOME = announced(HOME, "home")
AT_OFFICE = announced(OFFICE, "office", "192.0.2.2", 9000, 9005)
PLACE_HOME = Place(HOME, ("192.0.2.1",), 8115, 8116)
PLACE_OFFICE = Place(OFFICE, ("192.0.2.2",), 9000, 9005)
WAS_HOME = Place(HOME, ("192.0.2.9",), 8115, 8116)


@pytest.mark.parametrize(
    ("options", "known", "heads", "all_seen", "place"),
    [
        # nothing is said and nothing is known
        ({}, [], [], True, None),
        ({}, [], [AT_HOME], False, None),  # another fleet may be about to show itself
        ({}, [], [AT_HOME], True, PLACE_HOME),
        # a PC stays with its fleet
        ({}, [joined(HOME, "home")], [AT_OFFICE, AT_HOME], False, PLACE_HOME),
        ({}, [joined(HOME, "home")], [AT_OFFICE], False, None),
        ({}, [joined(HOME, "home")], [AT_OFFICE], True, WAS_HOME),
        ({}, [joined(OFFICE, "office"), joined(HOME, "home")], [AT_HOME], False, PLACE_HOME),
        ({}, [joined(HOME, "home"), joined(OFFICE, "office")], [], True, WAS_HOME),
        # a name
        ({"fleet": "office"}, [joined(HOME, "home")], [AT_HOME, AT_OFFICE], True, PLACE_OFFICE),
        ({"fleet": "office"}, [], [AT_HOME], True, None),
        ({"fleet": "home"}, [joined(HOME, "home")], [], True, WAS_HOME),
        ({"fleet": "home"}, [joined(HOME, "home")], [AT_HOME], False, PLACE_HOME),
        # a key, or a token
        ({"fleet_key": OFFICE}, [joined(HOME, "home")], [AT_HOME, AT_OFFICE], False, PLACE_OFFICE),
        ({"fleet_key": OFFICE}, [], [AT_HOME], True, None),
        ({"token": OFFICE}, [joined(HOME, "home")], [AT_HOME, AT_OFFICE], False, PLACE_OFFICE),
        # an address
        ({"head": "pc", "token": HOME}, [], [], False, Place(HOME, ("pc",), 8115, 8116)),
        ({"head": "pc:9", "fleet_key": HOME}, [], [AT_HOME], False, Place(HOME, ("pc",), 9, 10)),
        ({"head": "192.0.2.9"}, [joined(OFFICE, "o", "192.0.2.8:8115"), joined(HOME, "h")], [], False, WAS_HOME),
        ({"head": "192.0.2.1"}, [], [AT_OFFICE, AT_HOME], False, PLACE_HOME),
        ({"head": "192.0.2.7"}, [joined(HOME, "home")], [], False, None),
        ({"head": "192.0.2.7"}, [joined(HOME, "home")], [], True, Place(HOME, ("192.0.2.7",), 8115, 8116)),
        ({"head": "pc", "fleet": "home"}, [joined(HOME, "home")], [], False, Place(HOME, ("pc",), 8115, 8116)),
        ({"head": "pc", "fleet": "office"}, [], [], False, None),
    ],
)
def test_where_to_go(
    options: dict[str, str], known: list[JoinedFleet], heads: list[Announcement], all_seen: bool, place: Place | None
) -> None:
    assert choose(said(options), known, heads, all_seen=all_seen) == place


@pytest.mark.parametrize(
    ("options", "heads", "words"),
    [
        ({}, [AT_HOME, AT_OFFICE], ["2 fleets", "home (192.0.2.1:8115)", "office (192.0.2.2:9000)", "--fleet NAME"]),
        ({"fleet": "home"}, [AT_HOME, announced(OFFICE, "home")], ["2 fleets", HOME, OFFICE, "--fleet-key"]),
        ({}, [AT_HOME, announced(OFFICE, "home")], ["2 fleets", "--head HOST:PORT"]),
        ({"head": "pc"}, [], ["--head", "impostor", "--token"]),
        ({"head": "pc", "fleet": "office"}, [AT_HOME], ["--head", "impostor", "--token"]),
        ({"head": "pc", "token": HOME, "fleet_key": OFFICE}, [], ["another fleet"]),
        ({"head": "pc:"}, [], ["--head"]),
    ],
)
def test_it_is_not_clear_where_to_go(options: dict[str, str], heads: list[Announcement], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        choose(said(options), [], heads, all_seen=True)
    for word in words:
        assert word in str(refused.value)


def said(options: dict[str, Any]) -> JoinOptions:
    """What the user says; a token is given by its fleet."""
    token = options.get("token")
    return JoinOptions(**{**options, "token": token and Token(fleet=token, joining=KeyPair.new())})


def test_no_pc_joins_at_the_api() -> None:
    with pytest.raises(ConfigurationError, match="port of the HTTP API"):
        Place.at("f", f"pc:{DEFAULT_PORT}")


class FakeDiscovery:
    """A network on which nothing is heard but what the test says."""

    heads: tuple[Announcement, ...] = ()
    last: FakeDiscovery

    def __init__(self, announce: Announcement, changed: Callable[[tuple[Announcement, ...]], None]) -> None:
        self.announced, self.changed, self.problem = announce, changed, None
        FakeDiscovery.last = self

    @property
    def others(self) -> tuple[Announcement, ...]:
        return self.heads

    def update(self, announcement: Announcement) -> None:
        self.announced = announcement

    def say(self, *heads: Announcement) -> None:
        FakeDiscovery.heads = heads
        self.changed(heads)

    def close(self) -> None:
        pass


class Fleet:
    """A head with a door."""

    def __init__(self, folder: Path) -> None:
        self.identity = FleetIdentity.load_or_create(folder)
        self.members = Members(folder, self.identity.keys.public)
        self.head = ScriptedHead(self.members.is_member, keys=self.identity.keys)
        self.door = Door(self.identity, self.members, self.head.port, host=HOST)
        self.token = Token(fleet=self.identity.keys.public, joining=self.identity.joining)

    def announcement(self) -> Announcement:
        return announced(self.identity.keys.public, "home", "192.0.2.1", self.head.port, self.door.port)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr(joining, "Discovery", FakeDiscovery)
    monkeypatch.setattr(joining, "_resolved", lambda addresses: (HOST,))  # what is announced is not on loopback
    FakeDiscovery.heads = ()
    fleet = Fleet(tmp_path / "head")
    with fleet.head:
        yield fleet
        fleet.door.close()


class Enough(Exception):
    """Ends `run`."""


def run(entering: Joining, wanted: Callable[[NodeStatus], bool]) -> NodeStatus:
    """Run until the status is as wanted."""
    statuses = Statuses()

    def show(status: NodeStatus) -> None:
        statuses.add(status)
        if wanted(status):
            raise Enough

    with pytest.raises(Enough):
        entering.run(show)
    return statuses[-1]


def is_joined(status: NodeStatus) -> bool:
    return status.state == "joined"


@pytest.mark.usefixtures("nothing_stays")
def test_a_token_opens_the_door_and_the_fleet_is_remembered(fleet: Fleet, tmp_path: Path) -> None:
    options, settings = JoinOptions(token=fleet.token), NodeSettings(name="my pc")
    folders = {"config": tmp_path / "node", "cache": tmp_path / "cache"}
    FakeDiscovery.heads = (fleet.announcement(),)
    with Joining(options, settings, **folders) as entering:
        assert FakeDiscovery.last.announced.name == "my-pc"
        assert (FakeDiscovery.last.announced.fleet, FakeDiscovery.last.announced.bulk) == ("", None)
        status = run(entering, is_joined)
        assert (status.name, status.fleet) == ("my-pc", "home")
        assert FakeDiscovery.last.announced.fleet == fleet.identity.keys.public
        assert FakeDiscovery.last.announced.bulk is not None
    (known,) = JoinedFleets(tmp_path / "node").fleets
    assert (known.fleet, known.name) == (fleet.identity.keys.public, "home")
    assert known.address == f"{HOST}:{fleet.head.port}"
    FakeDiscovery.heads = ()
    with Joining(JoinOptions(), settings, **folders) as entering:
        assert is_joined(run(entering, is_joined))


@pytest.mark.usefixtures("nothing_stays")
def test_without_a_token_it_waits_and_then_follows_the_head(fleet: Fleet, tmp_path: Path) -> None:
    key = NodeIdentity.load_or_create(tmp_path / "node").keys.public
    FakeDiscovery.heads = (fleet.announcement(),)
    with Joining(JoinOptions(), NodeSettings(), config=tmp_path / "node", cache=tmp_path / "cache") as entering:
        code = code_of(fleet.identity.keys.public, key)
        states: list[str] = []

        def show(status: NodeStatus) -> None:
            states.append(status.state)
            if status.state == "waiting":
                assert status.code == code
                fleet.members.add(key, status.name)
            if states.count("joined") == 1 and status.state == "joined":
                fleet.head.server.close()
                fleet.head = ScriptedHead(fleet.members.is_member, keys=fleet.identity.keys)
                moved = fleet.announcement().model_copy(update={"addresses": (HOST,)})
                FakeDiscovery.last.say(AT_OFFICE, moved)
            if states.count("joined") == 2:
                raise Enough

        with pytest.raises(Enough):
            entering.run(show)
        assert states[-1] == "joined"
        fleet.head.server.close()


@pytest.mark.usefixtures("nothing_stays")
def test_nobody_is_there(fleet: Fleet, tmp_path: Path) -> None:
    with Joining(JoinOptions(fleet="x"), NodeSettings(), config=tmp_path / "node", cache=tmp_path / "c") as entering:
        alone = run(entering, lambda status: status.why is not None)
        assert "no fleet announces itself" in (alone.why or "")
        assert "--head" in (alone.hint or "")
        FakeDiscovery.heads = (AT_OFFICE,)
        other = run(entering, lambda status: "office" in (status.hint or ""))
        assert other.state == "looking"


@pytest.mark.usefixtures("nothing_stays")
def test_a_token_that_is_worth_nothing_any_more(fleet: Fleet, tmp_path: Path) -> None:
    fleet.door.renew(fleet.identity.renew_token(tmp_path / "head"))
    options = JoinOptions(token=fleet.token)
    FakeDiscovery.heads = (fleet.announcement(),)
    with (
        Joining(options, NodeSettings(), config=tmp_path / "node", cache=tmp_path / "cache") as entering,
        pytest.raises(ConfigurationError, match="token is not valid"),
    ):
        entering.run(lambda status: None)


@pytest.mark.usefixtures("nothing_stays")
def test_a_device_that_is_not_there_is_told_before_a_head_is(fleet: Fleet, tmp_path: Path) -> None:
    settings = NodeSettings(device="ABACUS")
    with (
        Joining(JoinOptions(), settings, config=tmp_path / "node", cache=tmp_path / "cache") as entering,
        pytest.raises(ConfigurationError, match="ABACUS"),
    ):
        entering.run(lambda status: None)


@pytest.mark.usefixtures("nothing_stays")
def test_a_node_that_is_forgotten_is_told_so(fleet: Fleet, tmp_path: Path) -> None:
    key = NodeIdentity.load_or_create(tmp_path / "node").keys.public
    fleet.members.add(key, "pc")
    FakeDiscovery.heads = (fleet.announcement(),)

    def show(status: NodeStatus) -> None:
        if is_joined(status):
            fleet.head.server.drop(key, "it was forgotten")

    with (
        Joining(JoinOptions(), NodeSettings(), config=tmp_path / "node", cache=tmp_path / "cache") as entering,
        pytest.raises(ConfigurationError, match="the head refuses this PC: it was forgotten"),
    ):
        entering.run(show)
