"""The fleet on one screen: its map, gauges, requests, pending nodes and events."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, ClassVar, Self

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal
from textual.content import Content
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import Static

from tui.choice_label import ChoiceLabel
from tui.client.head_client import HeadClient
from tui.client.history import History
from tui.client.state import Fleet, Model, Node, PendingNode
from tui.client.watch import Connection, FleetChanged
from tui.fleet.event_log import EventLog
from tui.fleet.keeping import Keeping, short
from tui.fleet.map_view import MapView
from tui.fleet.node_dialog import NodeDialog
from tui.fleet.notice import nothing_yet, notice
from tui.fleet.pending_list import PendingList
from tui.fleet.plan_dialog import PlanDialog
from tui.fleet.requests_table import RequestsTable
from tui.fleet.sections import SECTIONS, Section, SectionBar
from tui.fleet.sparklines import Sparklines

_ROOMY_WIDTH, _ROOMY_HEIGHT = 110, 28
"""From here everything is shown at once."""
_NOTHING = FleetChanged(Fleet(model=Model(name="", layers=0, context_length=0)), History(), ())


class FleetPane(Widget):
    """Shows what the head says of its fleet, and tells the head what its keeper wants."""

    DEFAULT_CSS = """
    FleetPane {
        layout: vertical;
        & > #notice { height: auto; max-height: 2; color: $text-warning; text-style: bold; display: none; }
        & > #top { height: 1fr; layout: vertical; }
        & > #below { height: 28%; min-height: 4; }
        & #side { height: 1fr; width: 1fr; }
        & #pending { height: auto; }
        & #events { height: 1fr; }

        &.-roomy {
            & > SectionBar { display: none; }
            & > #top { layout: horizontal; }
            & > #below { height: 34%; min-height: 11; }
            & Sparklines { width: 38; height: 1fr; border: round $foreground 30%; border-title-color: $text; }
            & MapView { border: round $foreground 30%; border-title-color: $text; border-subtitle-color: $text; }
            & MapView:focus { border: round $accent; }
            & Section { border: round $foreground 30%; border-title-color: $text; }
            & Section:focus-within { border: round $accent; }
        }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "approve", "Approve", tooltip="Let a node in that waits"),
        Binding("x", "refuse", "Refuse", tooltip="Do not list a node any more that waits to be let in"),
        Binding("c", "cancel", "Cancel", tooltip="End the answer under the table's cursor"),
        Binding("p", "plan", "Plan", tooltip="What the fleet would do for other wishes, and apply it"),
        Binding("d", "forget", "Forget", tooltip="Shut the node under the map's cursor out of the fleet"),
        Binding("e", "events", "Events", tooltip="The event log on the whole screen"),
        Binding("s", "section", "Section", tooltip="Requests, pending nodes or events, where not all are seen"),
    ]

    client: HeadClient | None = None
    """The head that is asked; None: there is none yet."""

    def __init__(self) -> None:
        super().__init__()
        self._connection = Connection("looking", "")
        self._change: FleetChanged | None = None
        self._keeping = Keeping(self)
        self._is_stale = False
        """Something came while the pane could not be seen."""
        self._is_ready = False
        self._section = "requests"
        self._noticed = ""
        self._pending: tuple[PendingNode, ...] = ()
        self._possible: tuple[bool, ...] = ()

    def compose(self) -> ComposeResult:
        """Gauges and map, then requests, pending nodes and events."""
        yield Static(id="notice", markup=False)
        with Container(id="top"):
            yield Sparklines()
            yield MapView()
        yield SectionBar()
        with Horizontal(id="below"):
            with Section(id="requests"):
                yield RequestsTable()
            with Container(id="side"):
                with Section(id="pending"):
                    yield PendingList()
                with Section(id="events"):
                    yield EventLog()

    def on_mount(self) -> None:
        """Show what came before there was anything to show it on."""
        self._is_ready = True
        self.query_one(Sparklines).border_title = "the last minutes"
        self._show_section(self._section)
        self._draw()

    def on_show(self) -> None:
        """Catch up."""
        if self._is_stale:
            self._draw()

    def on_resize(self, event: Resize) -> None:
        """Everything at once, or one section at a time."""
        self.set_class(event.size.width >= _ROOMY_WIDTH and event.size.height >= _ROOMY_HEIGHT, "-roomy")
        self._show_section(self._section)
        self.refresh_bindings()

    def focus(self, scroll_visible: bool = True) -> Self:
        """The map has the focus of the pane."""
        self.query_one(MapView).focus(scroll_visible)
        return self

    # news

    def show_connection(self, connection: Connection) -> None:
        """The head came, went, or wants a key."""
        if connection.url != self._connection.url:
            self._change = None  # another head: nothing of the old one stays
        self._connection = connection
        self._draw_if_seen()

    def show_fleet(self, change: FleetChanged) -> None:
        """Take a new state; what isn't visible is drawn when it becomes visible."""
        self._change = change
        self._draw_if_seen()

    # keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The footer offers what can be done now."""
        fleet = self._fleet
        match action:
            case "approve" | "refuse":
                return fleet is not None and bool(fleet.pending)
            case "cancel":
                return fleet is not None and bool(fleet.requests)
            case "plan":
                return fleet is not None and fleet.fleet is not None
            case "forget":
                node = self._chosen_node
                return node is not None and not node.is_head
            case "section":
                return not self.has_class("-roomy")
        return True

    def action_approve(self) -> None:
        """Let a pending node in."""
        self._see("pending")
        self.query_one(PendingList).action_approve()

    def action_refuse(self) -> None:
        """Do not list a pending node any more."""
        self._see("pending")
        self.query_one(PendingList).action_refuse()

    def action_cancel(self) -> None:
        """End the answer under the table's cursor, after a question."""
        self._see("requests")
        self.query_one(RequestsTable).action_cancel()

    def action_plan(self) -> None:
        """Preview a plan."""
        if client := self._client_or_notice():
            self.app.push_screen(PlanDialog(client), self._planned)

    def action_forget(self) -> None:
        """Shut the chosen node out, after a question."""
        if (node := self._chosen_node) and (client := self._client_or_notice()):
            self._begin(self._keeping.forget(client, node))

    def action_events(self) -> None:
        """The event log on the whole screen."""
        self.query_one(EventLog).action_enlarge()

    def action_section(self) -> None:
        """Show the next section."""
        there = [section for section in SECTIONS if section != "pending" or (self._fleet and self._fleet.pending)]
        index = there.index(self._section) + 1 if self._section in there else 0
        self._show_section(there[index % len(there)])

    # what the parts ask for

    def on_map_view_node_opened(self, message: MapView.NodeOpened) -> None:
        """A node in detail."""
        message.stop()
        fleet, node = self._fleet, self._node(message.node.key)
        if fleet is None or node is None:
            why = "not in the fleet any more" if message.node.key else "on this PC, which serves without a fleet"
            self._keeping.tell(f"{message.node.name} is {why}", severity="warning")
        elif client := self._client_or_notice():
            self.app.push_screen(NodeDialog(client, node, fleet.names), self._shut_out)

    def on_map_view_chosen(self, message: MapView.Chosen) -> None:
        """Another node: other things can be done."""
        message.stop()
        self.refresh_bindings()

    def on_choice_label_chosen(self, message: ChoiceLabel.Chosen) -> None:
        """A section was clicked."""
        message.stop()
        self._show_section(message.choice)

    def on_requests_table_cancel_requested(self, message: RequestsTable.CancelRequested) -> None:
        """End an answer."""
        message.stop()
        requests = self._fleet.requests if self._fleet else ()
        request = next((each for each in requests if each.id == message.request), None)
        if request and (client := self._client_or_notice()):
            self._begin(self._keeping.cancel(client, request))

    def on_pending_list_approve_requested(self, message: PendingList.ApproveRequested) -> None:
        """Let a node in."""
        message.stop()
        waiting = self._fleet.pending if self._fleet else ()
        pending = next((each for each in waiting if each.code == message.code), None)
        if pending and (client := self._client_or_notice()):
            self._begin(self._keeping.approve(client, pending))

    def on_pending_list_refuse_requested(self, message: PendingList.RefuseRequested) -> None:
        """Do not list a node any more."""
        message.stop()
        if client := self._client_or_notice():
            self._begin(self._keeping.refuse(client, message.code))

    def _planned(self, was_applied: bool | None) -> None:
        if was_applied:
            self._keeping.tell("the plan is taken up")

    def _shut_out(self, name: str | None) -> None:
        if name is not None:
            self._keeping.tell(f"{short(name)} is shut out")

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.run_worker(work, group="keeping")

    def _client_or_notice(self) -> HeadClient | None:
        if self.client is None:
            self._keeping.tell("no head is connected: ctrl+k connects to one", severity="warning")
        return self.client

    # drawing

    @property
    def _fleet(self) -> Fleet | None:
        return self._change.fleet if self._change else None

    @property
    def _chosen_node(self) -> Node | None:
        chosen = self.query_one(MapView).chosen if self._is_ready else None
        return self._node(chosen.key) if chosen else None

    def _node(self, key: str) -> Node | None:
        return next((node for node in self._fleet.nodes if node.key == key), None) if self._fleet else None

    def _draw_if_seen(self) -> None:
        if self._is_ready and self.is_on_screen:
            self._draw()
        else:
            self._is_stale = True

    def _draw(self) -> None:
        self._is_stale = False
        self._notice(notice(self._connection, self._fleet))
        change = self._change or _NOTHING
        fleet = change.fleet
        self.query_one(Sparklines).show_fleet(fleet, change.history)
        if self._change is None:
            self.query_one(MapView).show_message(nothing_yet(self._connection))
        else:
            self.query_one(MapView).show_fleet(fleet, change.history, is_live=self._connection.state == "up")
        self.query_one(RequestsTable).show_fleet(fleet)
        if fleet.pending != self._pending:  # the list is laid out anew each time
            self._pending = fleet.pending
            self.query_one(PendingList).show_pending(fleet.pending)
        self.query_one(EventLog).show_events(fleet.events)
        self._title_sections(fleet)
        actions = ("approve", "cancel", "plan", "forget")
        possible = tuple(bool(self.check_action(action, ())) for action in actions)
        if possible != self._possible:
            self._possible = possible
            self.refresh_bindings()

    def _notice(self, words: str) -> None:
        if words != self._noticed:  # each update is a new layout of the screen
            self._noticed = words
            line = self.query_one("#notice", Static)
            line.display = bool(words)
            line.update(Content(words))

    def _title_sections(self, fleet: Fleet) -> None:
        bar = self.query_one(SectionBar)
        waiting = fleet.parked + sum(chain.scheduler.waiting for chain in fleet.chains)
        titles = {
            "requests": f"requests {len(fleet.requests)}" + (f", {waiting} waiting" if waiting else ""),
            "pending": f"waiting to be let in {len(fleet.pending)}",
            "events": "events",
        }
        for section, title in titles.items():
            is_there = section != "pending" or bool(fleet.pending)
            self.query_one(f"#{section}", Section).set_title(title)
            bar.set_title(section, title, is_there=is_there)
        self._show_section(self._section)

    def _show_section(self, section: str) -> None:
        """Where there is room all of them, else this one; nobody waits to be let in, then the requests."""
        if not self._is_ready:
            return
        has_pending = self._fleet is not None and bool(self._fleet.pending)
        self._section = section = "requests" if section == "pending" and not has_pending else section
        is_roomy = self.has_class("-roomy")
        seen = {each: is_roomy or each == section for each in SECTIONS}
        seen["pending"] = seen["pending"] and has_pending
        for each, is_seen in seen.items():
            self.query_one(f"#{each}", Section).display = is_seen
        self.query_one("#side").display = seen["pending"] or seen["events"]
        self.query_one(SectionBar).show(section)

    def _see(self, section: str) -> None:
        """What a key acts on is to be seen."""
        if not self.query_one(f"#{section}", Section).display:
            self._show_section(section)
