"""The policy of "Cascadia: Resident 975B MoE Inference on Eleven AI PCs" (Berenbaum, Parij, Venkatachalam, 2026).

Streams are dealt to as many groups as there are stages, and the head visits the groups in turn. In a group's turn it

1. reads the answers that the group's last turn is owed, in the order of the wire, and waits for them if need be; it may
   do point 3 once meanwhile;
2. sends one window of the prompt that is being fed, whichever group that belongs to;
3. admits one pending request if no prompt is being fed (any more); its first window leaves at once;
4. sends one row of each stream of the group that has a token to go on from.

Prompt rows and answer rows never share a frame. A new stream joins the emptiest group and stays there. This is from the
paper's public scheduler notes and experiment records, and agrees with what they count: the first of 88 streams has 31
tokens when the last has its first. Of the speculation for a stream that is alone nothing is modelled, so one stream is
not comparable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field

from pipeline.messages import Request, RequestEvent, Step, StepResult
from pipeline.scheduler_config import SchedulerConfig
from pipeline.simulation.policies.streams import Stream, Streams, refuse_drafter
from pipeline.speculation.drafter import Drafter


class GroupsOptions(BaseModel):
    """What the system lets its owner choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: int | None = Field(None, ge=1, description="None: one for each stage")
    window: int = Field(8, ge=1, description="rows of a prompt in a frame")


@dataclass(eq=False, slots=True)
class _Group:
    members: int = 0
    ready: list[Stream] = field(default_factory=list)
    owed: set[int] = field(default_factory=set)
    """Steps of its last turn that are not answered yet."""


class GroupsPolicy:
    """Groups in turn; see the module."""

    def __init__(self, config: SchedulerConfig, options: GroupsOptions) -> None:
        self._window = options.window
        self._groups = [_Group() for _ in range(options.groups or config.stages)]
        self._streams = Streams(config)
        self._group_of: dict[Stream, _Group] = {}
        self._feeding: Stream | None = None
        self._turn = 0
        self._frames: deque[Step] = deque()
        """What the turn that has been taken last still has to send."""
        self._waited = False
        """Whether a request has been admitted in this wait for answers."""

    def add(self, request: Request, now: float) -> None:
        """As `Policy.add`; raises CapacityError if the request is larger than a place."""
        self._streams.add(request)

    def next_step(self, now: float) -> Step | None:
        """As `Policy.next_step`."""
        for _ in self._groups:
            if self._frames:
                break
            group = self._groups[self._turn]
            if group.owed:
                self._admit_while_waiting(group)
                break
            self._take_turn(group)
        return self._frames.popleft() if self._frames else self._streams.farewell()

    def complete(self, result: StepResult, now: float) -> Sequence[RequestEvent]:
        """As `Policy.complete`."""
        for group in self._groups:
            group.owed.discard(result.number)
        done = self._streams.complete(result)
        for stream in done.ready:
            self._group_of[stream].ready.append(stream)
        for stream in done.ended:
            self._group_of.pop(stream).members -= 1
        return done.events

    @property
    def is_idle(self) -> bool:
        """As `Policy.is_idle`."""
        return self._streams.is_idle

    def _take_turn(self, group: _Group) -> None:
        if self._feeding is not None:
            self._feed(group, self._feeding)
        self._admit(group)
        if group.ready:
            self._send(group, [(stream, 1) for stream in group.ready])
            group.ready.clear()
        self._turn = (self._turn + 1) % len(self._groups)
        self._waited = False

    def _admit_while_waiting(self, group: _Group) -> None:
        if not self._waited:
            self._waited = True
            self._admit(group)

    def _admit(self, group: _Group) -> None:
        if self._feeding is not None or (stream := self._streams.admit()) is None:
            return
        home = min(self._groups, key=lambda candidate: candidate.members)
        home.members += 1
        self._group_of[stream] = home
        self._feed(group, stream)

    def _feed(self, group: _Group, stream: Stream) -> None:
        self._send(group, [(stream, min(self._window, stream.unsent))])
        self._feeding = stream if stream.is_feeding else None

    def _send(self, group: _Group, batch: list[tuple[Stream, int]]) -> None:
        step = self._streams.step(batch)
        group.owed.add(step.number)
        self._frames.append(step)


def groups(config: SchedulerConfig, options: Mapping[str, object], drafter: Drafter | None = None) -> GroupsPolicy:
    """A PolicyMaker; the options are those of GroupsOptions."""
    refuse_drafter(drafter)
    return GroupsPolicy(config, GroupsOptions.model_validate(options))
