from fleet_states import simple

from tui.client.state import PendingNode
from tui.client.watch import Connection
from tui.fleet.notice import nothing_yet, notice

UP = Connection("up", "http://127.0.0.1:8114")
GONE = Connection("gone", "http://127.0.0.1:8114", "nobody answers\x1b[2J")


def test_all_is_well() -> None:
    assert notice(UP, simple()) == ""
    assert notice(UP, None) == ""


def test_what_is_wrong_and_who_waits() -> None:
    one = PendingNode(code="AB-1", name="pc-9")
    assert notice(UP, simple(pending=(one,))) == "? pc-9 waits to be let in (a)"
    assert notice(UP, simple(pending=(one, one))) == "? 2 nodes wait to be let in (a)"
    assert notice(UP, simple(problem="no memory", parked=3)) == "! no memory · … 3 waiting for a chain"
    assert notice(GONE, simple()).startswith(
        "× the head is gone, and what is shown is what it said last: nobody answers"
    )
    assert "\x1b" not in notice(GONE, simple())


def test_why_there_is_no_map() -> None:
    assert nothing_yet(Connection("looking", "")) == "looking for the head …"
    assert nothing_yet(UP) == "waiting for the head's first state …"
    assert nothing_yet(GONE).startswith("no head answers: nobody answers")
    assert nothing_yet(Connection("locked", "")) == "the head wants an API key"


def test_a_long_name_leaves_room_for_what_its_node_wants() -> None:
    fleet = simple(pending=(PendingNode(code="c", name="\x1b[2J" + "w" * 300),))
    assert notice(UP, fleet) == "? \ufffd[2J" + "w" * 25 + "… waits to be let in (a)"
