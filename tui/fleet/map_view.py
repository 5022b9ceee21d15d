"""The fleet's map: chains of nodes, the links between them, and steps on their way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.timer import Timer

from tui.client.history import History
from tui.client.state import Chain, Fleet
from tui.fleet.map_drawing import LOOKS, Line, Lines, Marks, draw_rails, draw_standing, joined, node_at
from tui.fleet.map_facts import MapFacts, NodeFacts, map_facts
from tui.fleet.map_layout import Box, Layout, lay_out
from tui.fleet.step_marks import Round, drawn, phases, round_of, shift, symbols

FRAMES_PER_SECOND = 8


@dataclass(frozen=True, slots=True)
class _Flow:
    """The steps of a chain, as they were in the newest state."""

    chain: int
    round: Round
    phases: list[float]
    symbols: list[str]
    shift: float


class MapView(ScrollView, can_focus=True):
    """Draws a state, animates its steps while it is seen, and lets a node be chosen by keys or mouse.

    Args:
        clock: Seconds, never going back.
    """

    ALLOW_SELECT = False  # a second click opens a node
    COMPONENT_CLASSES: ClassVar[set[str]] = {"map--more", *(f"map--{look}" for look in LOOKS)}

    DEFAULT_CSS = """
    MapView {
        height: 1fr;
        overflow-x: hidden;
        & > .map--dim { color: $text-muted; }
        & > .map--title { text-style: bold; }
        & > .map--good { color: $text-success; }
        & > .map--busy { color: $text-warning; }
        & > .map--bad { color: $text-error; text-style: bold; }
        & > .map--frame { color: $foreground 50%; }
        & > .map--chosen { color: $text-accent; text-style: bold; }
        & > .map--rail { color: $foreground 50%; }
        & > .map--mark { color: $text-primary; text-style: bold; }
        & > .map--bar { color: $primary; }
        & > .map--more { text-style: bold reverse; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(0, -1)", "Node above", show=False),
        Binding("down", "choose(0, 1)", "Node below", show=False),
        Binding("left", "choose(-1, 0)", "Node before", show=False),
        Binding("right", "choose(1, 0)", "Node after", show=False),
        Binding("enter", "open", "Node", tooltip="The node under the map's cursor in detail"),
    ]

    class Chosen(Message):
        """The cursor went to another node."""

    class NodeOpened(Message):
        """Somebody wants to see a node in detail."""

        def __init__(self, node: NodeFacts) -> None:
            super().__init__()
            self.node = node

    def __init__(
        self, *, id: str | None = None, classes: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._clock = clock
        self._facts = MapFacts(message="no head is connected yet")
        self._layout_plan = Layout(1, 0, ())
        self._chosen: tuple[int, int] | None = None
        self._flows: dict[int, _Flow] = {}
        self._taken_at = 0.0
        self._standing: Lines = {}
        self._lines: list[Line] = []
        self._frames: Timer | None = None
        self._hidden = 0
        """Nodes below what is seen."""
        self._title = ""

    @property
    def chosen(self) -> NodeFacts | None:
        """The node under the cursor."""
        box = self._chosen_box
        return node_at(self._facts, box) if box else None

    @property
    def is_animating(self) -> bool:
        """Whether frames are drawn between the states."""
        return bool(self._flows) and self.is_on_screen and self.app.animation_level != "none"

    def show_fleet(self, fleet: Fleet, history: History, *, is_live: bool = True) -> None:
        """Draw a state; the steps of one that is not live are history."""
        before = self.chosen
        self._facts = map_facts(fleet, history)
        self._take_steps(fleet.chains if is_live else ())
        self._arrange(before)
        self._run_frames()

    def show_message(self, message: str) -> None:
        """Say why there is nothing to draw."""
        self._facts, self._flows = MapFacts(message=message), {}
        self._arrange(None)

    def on_mount(self) -> None:
        """Frames come when there is something to move."""
        self._frames = self.set_interval(1 / FRAMES_PER_SECOND, self.draw_frame, pause=True)

    def on_resize(self) -> None:
        """Another plan for another area."""
        self._arrange(self.chosen)

    def on_show(self) -> None:
        """The steps go on."""
        self._run_frames()

    def on_hide(self) -> None:
        """Nobody looks."""
        self._run_frames()

    def on_focus(self) -> None:
        """The keys need a node to begin with."""
        self.call_later(lambda: self._arrange(self.chosen))  # once it has the focus

    def on_click(self, event: events.Click) -> None:
        """Choose a node; a second click opens it."""
        offset = event.get_content_offset(self)
        box = self._layout_plan.at(offset.x, offset.y + self.scroll_offset.y) if offset is not None else None
        if box is not None:
            self._choose(box)
            if event.chain > 1:
                self.action_open()

    def action_choose(self, right: int, down: int) -> None:
        """Move the cursor to the next node in a direction."""
        boxes, current = self._layout_plan.boxes, self._chosen_box
        if current is None:
            if boxes:
                self._choose(boxes[0])
            return
        if right:
            index = boxes.index(current) + right
            target = boxes[index] if 0 <= index < len(boxes) else None
        else:
            target = _vertical(boxes, current, down)
        if target is not None:
            self._choose(target)
        elif down:  # the end of the list: show what is beyond it
            self.scroll_relative(y=down, animate=False)

    def action_open(self) -> None:
        """Ask for the node under the cursor."""
        if node := self.chosen:
            self.post_message(self.NodeOpened(node))

    def notify_style_update(self) -> None:
        """Other colours: everything is drawn anew."""
        super().notify_style_update()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line of the map."""
        width = self.scrollable_content_region.width
        base = self.get_component_rich_style("map--plain")  # unlike the widget's own it is kept
        is_last = y == self.size.height - 1
        y += self.scroll_offset.y
        if y >= len(self._lines):
            return Strip.blank(width, base)
        segments: list[Segment] = []
        at = 0
        for piece in self._lines[y]:
            if piece.x > at:
                segments.append(Segment(" " * (piece.x - at), base))
            segment = Segment(piece.text, self.get_component_rich_style(f"map--{piece.look}"))
            segments.append(segment)
            at = piece.x + segment.cell_length
        strip = Strip(segments, at)
        if is_last and self._hidden:
            more = f" +{self._hidden} more "
            look = self.get_component_rich_style("map--more")
            strip = strip.adjust_cell_length(max(width - len(more), 0), base)
            strip = Strip([*strip, Segment(more, look)])
        return strip.adjust_cell_length(width, base)

    @property
    def _chosen_box(self) -> Box | None:
        return next((box for box in self._layout_plan.boxes if (box.group, box.index) == self._chosen), None)

    @property
    def _elapsed(self) -> float:
        """Seconds since the newest state, for who wants things to move."""
        return self._clock() - self._taken_at if self.app.animation_level != "none" else 0.0

    def _take_steps(self, chains: Sequence[Chain]) -> None:
        """The steps of the new state; those on the screen go on from where they are."""
        elapsed = self._elapsed
        flows: dict[int, _Flow] = {}
        before = {flow.chain: flow for flow in self._flows.values()}
        for group, chain in enumerate(chains):
            if chain.steps and not chain.failure:
                round_ = round_of(chain)
                new = phases(chain, round_)
                old = before.get(chain.id)
                shown = drawn(old.phases, old.round, old.shift, elapsed) if old and elapsed else []
                flows[group] = _Flow(chain.id, round_, new, symbols(chain), shift(shown, new))
        self._flows, self._taken_at = flows, self._clock()

    def _arrange(self, chosen: NodeFacts | None) -> None:
        """Plan anew and draw; the cursor stays with its node, wherever that is now."""
        facts, area = self._facts, self.scrollable_content_region.size
        counts = [len(chain.nodes) for chain in facts.chains]
        outer = self.size
        plan = lay_out(counts, len(facts.idle), outer.width, outer.height)
        if plan.height > outer.height:  # the scroll bar takes its part
            plan = lay_out(counts, len(facts.idle), outer.width - self.styles.scrollbar_size_vertical, outer.height)
        moved, self._layout_plan = plan != self._layout_plan, plan
        if chosen is not None:
            self._chosen = self._place_of(chosen)
        if self._chosen is None and self.has_focus and plan.boxes:
            self._chosen = plan.boxes[0].group, plan.boxes[0].index
            self.post_message(self.Chosen())
        if moved:
            self.virtual_size = Size(min(plan.width, max(area.width, 1)), plan.height)
        self._draw()

    def _place_of(self, node: NodeFacts) -> tuple[int, int] | None:
        places = [((box.group, box.index), node_at(self._facts, box)) for box in self._layout_plan.boxes]
        same = [place for place, other in places if (other.key, other.name) == (node.key, node.name)]
        return self._chosen if self._chosen in same else same[0] if same else None

    def _choose(self, box: Box) -> None:
        self._chosen = (box.group, box.index)
        self._draw()
        self.scroll_to_region(Region(box.x, box.y, box.width, box.height), animate=False)
        self.post_message(self.Chosen())

    def _draw(self) -> None:
        self._standing = draw_standing(self._layout_plan, self._facts, self._chosen_box)
        self.draw_frame()
        self._say_what_is_seen()

    def draw_frame(self) -> None:
        """Move the steps; only lines that have changed are sent to the terminal."""
        rails = draw_rails(self._layout_plan, self._marks(), self._chosen_box)
        lines = [joined(self._standing, rails, y) for y in range(self._layout_plan.height)]
        old, self._lines = self._lines, lines
        if len(old) != len(lines):
            self.refresh()
            return
        top = self.scroll_offset.y
        changed = [
            Region(0, y - top, self.size.width, 1)
            for y in range(top, min(top + self.size.height, len(lines)))
            if lines[y] != old[y]
        ]
        if changed:
            self.refresh(*changed)

    def _marks(self) -> Marks:
        elapsed = self._elapsed
        return {
            group: [
                (flow.round.position(phase), symbol)
                for phase, symbol in zip(drawn(flow.phases, flow.round, flow.shift, elapsed), flow.symbols, strict=True)
            ]
            for group, flow in self._flows.items()
        }

    def _run_frames(self) -> None:
        if self._frames is not None:
            if self.is_animating:
                self._frames.resume()
            else:
                self._frames.pause()

    def _say_what_is_seen(self) -> None:
        hidden = self._layout_plan.below(self.scroll_offset.y + self.size.height)
        if hidden != self._hidden:
            self._hidden = hidden
            self.refresh(Region(0, self.size.height - 1, self.size.width, 1))
        is_slowed = any(flow.round.slowed >= 2 for flow in self._flows.values())
        title = "map, steps in slow motion" if is_slowed else "map"
        if title != self._title:  # each assignment draws everything anew
            self._title = self.border_title = title

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """What is hidden is another part now."""
        super().watch_scroll_y(old_value, new_value)
        self._say_what_is_seen()


def _vertical(boxes: tuple[Box, ...], current: Box, down: int) -> Box | None:
    """The box of the next row that is most nearly above or below."""
    beyond = [box for box in boxes if (box.y - current.y) * down > 0]
    if not beyond:
        return None
    nearest = min(abs(box.y - current.y) for box in beyond)
    row = [box for box in beyond if abs(box.y - current.y) == nearest]
    return min(row, key=lambda box: abs(box.x + box.width / 2 - current.x - current.width / 2))
