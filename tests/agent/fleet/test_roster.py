from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent.fleet.control.messages import (
    Condition,
    Goodbye,
    Hardware,
    Heartbeat,
    Hello,
    Refused,
    TaskFailed,
    ToNode,
    Versions,
    Welcome,
)
from agent.fleet.control.roster import (
    Action,
    Connection,
    Dropped,
    NodeEvent,
    NodeJoined,
    NodeLeft,
    NodeSaid,
    Roster,
    Tell,
)

KEYS = tuple(letter * 40 for letter in "abc")
HEARTBEAT, LOST = 1.0, 5.0
CONDITION = Condition(memory_free=2, memory_allowed=1, disk_free=3)


def hello(name: str = "desk", instance: str = "1") -> Hello:
    return Hello(
        name=name,
        instance=instance,
        versions=Versions(edge_agent="1", openvino="1", python="3", system="any"),
        hardware=Hardware(processor="any", cores=2, memory=4, devices=(), is_laptop=False),
        condition=CONDITION,
        addresses=("192.0.2.1",),
        bulk_port=1,
    )


def way(key: int, route: int = 0) -> Connection:
    return Connection(KEYS[key], b"%d-%d" % (key, route))


def told(actions: list[Action], to: Connection) -> list[ToNode]:
    return [action.message for action in actions if isinstance(action, Tell) and action.to == to]


def events(actions: list[Action]) -> list[NodeEvent]:
    return [action for action in actions if isinstance(action, NodeJoined | NodeSaid | NodeLeft)]


@pytest.fixture
def roster() -> Roster:
    return Roster("home", HEARTBEAT, LOST)


def enter(roster: Roster, at: Connection, now: float = 0.0, **what: Any) -> list[Action]:
    return roster.said(now, at, "192.0.2.1", hello(**what))


def test_a_node_joins_speaks_and_leaves(roster: Roster) -> None:
    at = way(0)
    assert enter(roster, at) == [
        NodeJoined(at.key, "desk", hello(), "192.0.2.1"),
        Tell(at, Welcome(fleet="home", name="desk")),
    ]
    assert roster.connection(at.key) == at
    assert roster.said(1, at, "", Heartbeat()) == []
    beat, report = Heartbeat(condition=CONDITION), TaskFailed(task="t", what="it")
    assert roster.said(1, at, "", beat) == [NodeSaid(at.key, beat)]
    assert roster.said(1, at, "", report) == [NodeSaid(at.key, report)]
    assert roster.said(1, at, "", Goodbye(why="home time")) == [NodeLeft(at.key, "home time")]
    assert roster.connection(at.key) is None


def test_what_comes_before_hello_or_on_another_connection_is_not_heeded(roster: Roster) -> None:
    enter(roster, way(0))
    for at in (way(1), way(0, 1), Connection(KEYS[1], way(0).route)):
        (dropped,) = roster.said(0, at, "", Heartbeat(condition=CONDITION))
        assert isinstance(dropped, Dropped)
        assert roster.said(0, at, "", Goodbye(why="late")) == []
        assert roster.objection(0, at, 10**6)
        assert roster.objection(0, at, 1000) is None
    assert roster.connection(KEYS[0]) == way(0)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("desk", ["desk", "desk-2", "desk-3"]),
        ("x" * 63, ["x" * 63, "x" * 61 + "-2", "x" * 61 + "-3"]),
        (" \x1b[31mred\n ", ["[31mred", "[31mred-2", "[31mred-3"]),
        ("\n", ["node", "node-2", "node-3"]),
    ],
)
def test_names_are_unique_and_fit_for_a_terminal(roster: Roster, wanted: str, names: list[str]) -> None:
    for key, name in enumerate(names):
        assert told(enter(roster, way(key), name=wanted), way(key)) == [Welcome(fleet="home", name=name)]


def test_names_that_differ_in_case_alone_are_the_same(roster: Roster) -> None:
    enter(roster, way(0), name="Desk")
    assert told(enter(roster, way(1), name="desk"), way(1)) == [Welcome(fleet="home", name="desk-2")]


def test_a_name_is_free_again_when_its_node_has_left(roster: Roster) -> None:
    enter(roster, way(0))
    roster.said(1, way(0), "", Goodbye(why="home time"))
    assert told(enter(roster, way(1)), way(1)) == [Welcome(fleet="home", name="desk")]


def test_silence_is_noticed_in_time_and_not_before(roster: Roster) -> None:
    enter(roster, way(0), now=10)
    roster.said(12, way(0), "", Heartbeat())
    assert events(roster.tick(12 + LOST - 0.01)) == []
    (left,) = events(roster.tick(12 + LOST))
    assert isinstance(left, NodeLeft)
    assert "5 seconds" in left.why


def test_heartbeats_go_to_all(roster: Roster) -> None:
    enter(roster, way(0))
    enter(roster, way(1))
    roster.tick(0)
    assert roster.tick(HEARTBEAT / 2) == []
    assert roster.tick(HEARTBEAT) == [Tell(way(0), Heartbeat()), Tell(way(1), Heartbeat())]


def test_the_same_process_on_a_new_connection_replaces_the_old_one(roster: Roster) -> None:
    enter(roster, way(0))
    actions = enter(roster, way(0, 1))
    assert [type(event) for event in events(actions)] == [NodeLeft, NodeJoined]
    assert told(actions, way(0, 1)) == [Welcome(fleet="home", name="desk")]
    assert roster.connection(KEYS[0]) == way(0, 1)


class TestRival:
    """Another process with the key of a node that is in."""

    @pytest.fixture(autouse=True)
    def come(self, roster: Roster) -> None:
        enter(roster, way(0))
        assert enter(roster, way(0, 1), instance="2") == [Tell(way(0), Heartbeat())]  # the question

    def test_it_is_refused_by_name_if_the_first_answers(self, roster: Roster) -> None:
        (refused,) = told(roster.said(1, way(0), "", Heartbeat()), way(0, 1))
        assert isinstance(refused, Refused)
        assert refused.final
        assert "desk at 192.0.2.1" in refused.what
        assert "node.json" in str(refused.hint)
        assert events(roster.tick(2 * HEARTBEAT)) == []
        assert roster.connection(KEYS[0]) == way(0)

    def test_it_takes_the_place_of_one_that_does_not_answer(self, roster: Roster) -> None:
        assert events(roster.tick(2 * HEARTBEAT - 0.01)) == []
        actions = roster.tick(2 * HEARTBEAT)
        assert [type(event) for event in events(actions)] == [NodeLeft, NodeJoined]
        assert isinstance(told(actions, way(0))[0], Goodbye)
        assert told(actions, way(0, 1))[0] == Welcome(fleet="home", name="desk")
        # should the first wake up, it is the one to be refused
        enter(roster, way(0, 2), now=3)
        (refused,) = told(roster.said(3, way(0, 1), "", Heartbeat()), way(0, 2))
        assert isinstance(refused, Refused)

    def test_it_comes_in_at_once_if_the_connection_of_the_first_is_broken(self, roster: Roster) -> None:
        actions = roster.unreachable(0, way(0), "its connection broke")
        assert [type(event) for event in events(actions)] == [NodeLeft, NodeJoined]
        assert roster.connection(KEYS[0]) == way(0, 1)

    def test_it_comes_in_at_once_if_the_first_leaves(self, roster: Roster) -> None:
        assert len(events(roster.said(0, way(0), "", Goodbye(why="restart")))) == 2
        assert roster.connection(KEYS[0]) == way(0, 1)

    def test_it_may_give_up(self, roster: Roster) -> None:
        assert roster.said(1, way(0, 1), "", Goodbye(why="no patience")) == []
        assert events(roster.tick(2 * HEARTBEAT)) == []

    def test_it_may_connect_again_without_delaying_the_decision(self, roster: Roster) -> None:
        assert enter(roster, way(0, 2), now=1.9, instance="2") == []
        assert isinstance(events(roster.tick(2))[1], NodeJoined)
        assert roster.connection(KEYS[0]) == way(0, 2)

    def test_a_third_has_to_wait(self, roster: Roster) -> None:
        refused, *_ = told(enter(roster, way(0, 2), instance="3"), way(0, 2))
        assert isinstance(refused, Refused)
        assert not refused.final

    def test_it_is_refused_if_the_first_connects_again(self, roster: Roster) -> None:
        actions = enter(roster, way(0, 3), now=1)
        assert isinstance(told(actions, way(0, 1))[0], Refused)
        assert roster.connection(KEYS[0]) == way(0, 3)

    def test_it_is_shut_out_together_with_the_first(self, roster: Roster) -> None:
        last = Refused(what="it was forgotten")
        actions = roster.drop(KEYS[0], last)
        assert told(actions, way(0)) == told(actions, way(0, 1)) == [last]
        assert events(actions) == [NodeLeft(KEYS[0], "it was forgotten")]
        assert roster.drop(KEYS[0], last) == []


def test_three_unreadable_messages_in_a_row_drop_a_node(roster: Roster) -> None:
    at = way(0)
    enter(roster, at)
    for _ in range(2):
        roster.malformed(0, at, "noise")
        roster.malformed(0, at, "noise")
        roster.said(0, at, "", Heartbeat())
    roster.malformed(0, at, "noise")
    roster.said(0, at, "", hello())  # so is a second Hello
    actions = roster.malformed(0, at, "noise")
    assert isinstance(told(actions, at)[0], Refused)
    assert [type(event) for event in events(actions)] == [NodeLeft]
    assert roster.malformed(0, at, "noise") == [Dropped(at, "noise")]


def test_messages_are_read_at_a_bounded_rate(roster: Roster) -> None:
    enter(roster, way(0))
    read = sum(roster.objection(now / 5000, way(0), 1) is None for now in range(10_000))
    assert 2990 <= read <= 3010  # a second's worth saved up, and two seconds
    assert roster.objection(4, way(0), 1) is None


def test_at_the_end_all_leave(roster: Roster) -> None:
    enter(roster, way(0))
    enter(roster, way(1))
    actions = roster.close("bye")
    assert events(actions) == [NodeLeft(KEYS[0], "bye"), NodeLeft(KEYS[1], "bye")]
    assert told(actions, way(1)) == [Goodbye(why="bye")]


class Machine(RuleBasedStateMachine):
    """Whatever comes, in whatever order: one instance of a key, alternating events, unique names, an answer to all."""

    def __init__(self) -> None:
        super().__init__()
        self.roster, self.now = Roster("home", HEARTBEAT, LOST), 0.0
        self.names: dict[str, str] = {}
        self.asked: dict[Connection, tuple[float, str]] = {}
        """Connections that said Hello and were not answered: when they asked, and their instance."""

    def check(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case NodeJoined(key=key, name=name):
                    assert key not in self.names
                    assert name not in self.names.values()
                    self.names[key] = name
                case NodeLeft(key=key):
                    del self.names[key]
                case NodeSaid(key=key):
                    assert key in self.names
                case Tell(to=to, message=Welcome() as welcome):
                    assert self.names[to.key] == welcome.name
                    del self.asked[to]
                case Tell(to=to, message=Refused()):
                    self.asked.pop(to, None)
                case _:
                    pass

    connections = st.builds(way, st.integers(0, 2), st.integers(0, 4))
    names_wanted = st.sampled_from(["desk", "Desk", "desk-2", "lamp"])

    @rule(at=connections, name=names_wanted, instance=st.sampled_from("123"))
    def hello(self, at: Connection, name: str, instance: str) -> None:
        if self.roster.connection(at.key) != at:
            gave_up = [old for old, (_, i) in self.asked.items() if (old.key, i) == (at.key, instance)]
            for old in gave_up:
                del self.asked[old]
            self.asked[at] = self.now, instance
        self.check(self.roster.said(self.now, at, "192.0.2.1", hello(name, instance)))

    @rule(at=connections)
    def speak(self, at: Connection) -> None:
        said = self.roster.said(self.now, at, "", TaskFailed(task="t", what="it"))
        self.check(said)
        assert (self.roster.connection(at.key) == at) == any(isinstance(action, NodeSaid) for action in said)

    @rule(at=connections)
    def goodbye(self, at: Connection) -> None:
        self.asked.pop(at, None)
        self.check(self.roster.said(self.now, at, "", Goodbye(why="")))
        assert self.roster.connection(at.key) != at

    @rule(at=connections)
    def noise(self, at: Connection) -> None:
        self.check(self.roster.malformed(self.now, at, "noise"))

    @rule(at=connections)
    def break_connection(self, at: Connection) -> None:
        self.asked.pop(at, None)
        self.check(self.roster.unreachable(self.now, at, "broken"))
        assert self.roster.connection(at.key) != at

    @rule(key=st.sampled_from(KEYS))
    def drop(self, key: str) -> None:
        self.check(self.roster.drop(key, Refused(what="forgotten")))
        assert self.roster.connection(key) is None

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.check(self.roster.tick(self.now))
        late = [at for at, (since, _) in self.asked.items() if self.now - since >= 2 * HEARTBEAT]
        assert late == []

    @invariant()
    def is_consistent(self) -> None:
        assert {key for key in KEYS if self.roster.connection(key)} == set(self.names)
        assert max(Counter(name.casefold() for name in self.names.values()).values(), default=1) == 1


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
