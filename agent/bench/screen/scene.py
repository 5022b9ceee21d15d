"""What a synthetic head says of its fleet: a function of the time and of what was done to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from agent.bench.screen import pcs
from shards.errors import RequestError, StageError
from tui.client.plan import Check, LeftOut, NodeDetail, Plan, PlannedChain, PlannedStage, Prediction, Preview, Wish
from tui.client.state import (
    Chain,
    ChainTimes,
    Event,
    Fleet,
    FleetName,
    Model,
    Node,
    PendingNode,
    Request,
    Scheduler,
    Stage,
    StageTimes,
    Step,
    Work,
)

MODEL = Model(name="Synthetic-70B", package_id="5f3a9c", layers=80, context_length=32768, weights="int4")
_DEEPEST = 9
"""Stages of a chain."""
_BYTES_PER_ROW = 8192 * 2
_KV_TOKENS = 65_536
_STEP_MS = 4.0
"""Between two steps that leave a chain."""
_EVENTS = 200


@dataclass(eq=False)
class Answering:
    """An answer that is being sent."""

    id: str
    client: str
    prompt_tokens: int
    max_tokens: int
    began: float
    first: float | None = None
    sent: int = 0
    failure: Exception | None = None
    """Why it has to end."""


@dataclass
class Scene:
    """A fleet of PCs that do not exist, with users that do not either.

    Args:
        nodes: How many PCs there are.
        users: How many answers are in the works beside those that are really asked for.
        since: When it began, in seconds since 1970.
    """

    nodes: int = 20
    users: int = 6
    since: float = 0.0
    wish: Wish = field(default_factory=lambda: Wish(users=8, context=8192))
    pending: list[PendingNode] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    answers: dict[str, Answering] = field(default_factory=dict)
    problem: str | None = None
    _gone: set[int] = field(default_factory=set)
    _cancelled: set[str] = field(default_factory=set)
    _epoch: int = 1
    _sent: int = 0

    def __post_init__(self) -> None:
        for number in range(self.nodes):
            self.tell(number, f"{pcs.name_of(number)} has joined from 192.168.7.{10 + number}")
        self.tell(self.nodes, f"serving with {len(self._split())} copies of {MODEL.name}")

    # What it says

    def fleet(self, now: float) -> Fleet:
        """Everything, `now` seconds after it began."""
        chains = self._split()
        return Fleet(
            model=MODEL,
            chains=tuple(self._chain(index, chain, now) for index, chain in enumerate(chains)),
            fleet=FleetName(name="synthetic", key=pcs.key_of(0), port=8115),
            nodes=tuple(self.node(number, now) for number in self._here()),
            pending=tuple(node.model_copy(update={"waiting_seconds": round(now, 1)}) for node in self.pending),
            events=tuple(self.events[-_EVENTS:]),
            problem=self.problem,
        )

    def node(self, number: int, now: float) -> Node:
        """A PC."""
        node = pcs.pc(number, self.since, now, is_head=number == 0)
        update: dict[str, object] = {"links": pcs.links(number, self.nodes)}
        serving = {number for chain in self._split() for number in chain}
        if number not in serving:
            update |= {"memory_planned": 0}
            if number % 2:
                done = now * 40e6 % 3.2e9
                update |= {"work": Work(what="fetching layers 40 to 48", done=done, total=3.2e9)}
        return node.model_copy(update=update)

    def plan(self, changes: dict[str, object]) -> Preview:
        """What would be planned.

        Raises:
            RequestError: it cannot be.
        """
        wish = Wish.model_validate(self.wish.model_dump() | changes)
        split = self._split(wish)
        if wish.users * wish.context > 40 * self.nodes * 32768:
            what = f"{wish.users} users with {wish.context} tokens each want 912 GB, the nodes have 560 GB"
            raise RequestError(what, where="context")
        each = max(wish.users // len(split), 1)
        chains = tuple(
            PlannedChain(
                stages=tuple(
                    PlannedStage(node=pcs.key_of(number), first_layer=first, end_layer=end, memory=end * pcs.GB // 8)
                    for number, (first, end) in zip(chain, _layers(len(chain)), strict=True)
                ),
                users=each,
                kv_tokens=each * wish.context,
                prediction=_prediction(len(chain), each),
            )
            for chain in split
        )
        used = {number for chain in split for number in chain}
        whole = Prediction(
            one_user=chains[0].prediction.one_user,
            users=wish.users,
            many_users=round(sum(chain.prediction.many_users for chain in chains), 1),
            first_token_ms=chains[0].prediction.first_token_ms,
        )
        less = whole.model_copy(update={"many_users": round(whole.many_users * 0.82, 1)})
        return Preview(
            wish=wish,
            nodes={pcs.key_of(number): pcs.name_of(number) for number in self._here()},
            unmeasured=(),
            plan=Plan(
                chains=chains,
                prediction=whole,
                left_out=tuple(
                    LeftOut(node=pcs.key_of(number), reason="its link of 11 MB/s would slow every step down by 6 ms")
                    for number in self._here()
                    if number not in used
                ),
                without={pcs.key_of(number): less for number in sorted(used)},
            ),
            current=_rate(self._split(), self.wish.users),
            is_current=split == self._split() and wish.users == self.wish.users,
        )

    def detail(self, name: str, now: float) -> NodeDetail:
        """A PC in detail.

        Raises:
            RequestError: there is none of this name or key.
        """
        number = self._number(name)
        rows = (1.0, 2.0, 4.0, 8.0, 16.0)
        return NodeDetail(
            node=self.node(number, now),
            milliseconds={
                "rows": rows,
                "layer": tuple(round(0.4 + 0.02 * count * (1 + number % 3), 3) for count in rows),
                "head": tuple(round(1.8 + 0.05 * count, 3) for count in rows),
            },
            log=tuple(f"12:00:{second:02} INFO stage: step {4000 + second}, 8 rows, 3.1 ms" for second in range(40)),
            checks=(
                Check(topic="devices", status="ok", what="CPU, GPU"),
                Check(
                    topic="battery",
                    status="warning",
                    what="runs on its battery",
                    next_step="Plug it in: on battery it computes at half the speed.",
                ),
            ),
        )

    # What is done to it

    def tell(self, now: float, what: str) -> None:
        """Something happened."""
        self.events.append(Event(time=self.since + now, what=what))

    def knock(self, code: str, name: str | None) -> None:
        """A PC asks to be let in."""
        self.pending.append(PendingNode(code=code, name=name, address="192.168.7.99", waiting_seconds=0.0))

    def approve(self, code: str, now: float) -> str:
        """It is let in, with the next number."""
        node = self._take_pending(code)
        self.nodes += 1
        self._epoch += 1
        self.tell(now, f"{pcs.name_of(self.nodes - 1)} has joined from {node.address}")
        return pcs.name_of(self.nodes - 1)

    def refuse(self, code: str) -> str:
        """It is not let in."""
        return self._take_pending(code).name or code

    def lose(self, name: str, now: float, why: str = "no sign of life for 3 s") -> str:
        """A PC goes, and the answers that ran through it end."""
        number = self._number(name)
        serving = any(number in chain for chain in self._split())
        self._gone.add(number)
        self._epoch += 1
        self.tell(now, f"{pcs.name_of(number)} has left: {why}")
        if serving:
            what = f"{pcs.name_of(number)} has left ({why}), and this answer ran through it"
            for answer in self.answers.values():
                answer.failure = StageError(what, where=pcs.name_of(number), hint="Ask again: the model moves.")
        return pcs.name_of(number)

    def cancel(self, request: str, now: float) -> None:
        """End an answer.

        Raises:
            RequestError: there is none.
        """
        if request in self.answers:
            self.answers[request].failure = StageError("the answer was cancelled by the fleet's keeper")
        elif any(request == other.id for other in self._others(now)):
            self._cancelled.add(request)
        else:
            raise RequestError(f"no answer in the works has the id {request!r}", where="request")

    def apply(self, changes: dict[str, object], now: float) -> Wish:
        """Take up another wish."""
        self.wish = self.plan(changes).wish
        self._epoch += 1
        self.tell(now, f"serving with {len(self._split())} copies of {MODEL.name}")
        return self.wish

    def count(self, answer: Answering, now: float) -> None:
        """A token was sent."""
        answer.first = now if answer.first is None else answer.first
        answer.sent += 1
        self._sent += 1

    def _take_pending(self, code: str) -> PendingNode:
        for node in self.pending:
            if node.code == code:
                self.pending.remove(node)
                return node
        raise RequestError(f"no node waits with code {code!r}", where="code")

    def _number(self, name: str) -> int:
        for number in self._here():
            if name in (pcs.name_of(number), pcs.key_of(number)):
                return number
        raise RequestError(f"no node is called {name!r}", where="node")

    # How it looks at a time

    def _here(self) -> list[int]:
        return [number for number in range(self.nodes) if number not in self._gone]

    def _split(self, wish: Wish | None = None) -> list[list[int]]:
        """The PCs of each chain; with many PCs, one in ten carries nothing."""
        wish = wish or self.wish
        here = self._here()
        used = here[: len(here) - len(here) // 10]
        depth = wish.stages or min(_DEEPEST, len(used))
        count = len(used) // depth if wish.replicas else 1
        if not count:
            raise RequestError(f"{depth} stages want as many PCs, there are {len(used)}", where="stages")
        return [used[index * depth : (index + 1) * depth] for index in range(count)]

    def _chain(self, index: int, numbers: list[int], now: float) -> Chain:
        period, depth = _STEP_MS, len(numbers)
        traversal = period * depth
        steps = int(now * 1000 / period)
        users = [*self._others(now), *self._asked(now)]
        mine = tuple(users[index :: len(self._split())])
        rows = max(len(mine), 1)
        tokens = int(self._tokens(now)) if index == 0 else int(self._tokens(now) * 0.8)
        use = 0.55 + 0.3 * math.sin(now / 5 + index)
        return Chain(
            id=self._epoch * 10 + index,
            stages=tuple(
                Stage(
                    layers=layers,
                    engine="openvino-paged",
                    device="GPU" if number % 2 == 0 else "CPU",
                    node=pcs.key_of(number),
                    kv_tokens=_KV_TOKENS,
                    microseconds=StageTimes(
                        wait=900 + 10 * number, compute=2600 + 90 * (number % 5), send=60, queued=120
                    ),
                    use=round(min(max(use + 0.08 * (number % 4 - 1.5), 0), 1), 3),
                    sent_bytes=steps * rows * (_BYTES_PER_ROW if place < depth - 1 else 4),
                )
                for place, (number, layers) in enumerate(zip(numbers, _layers(depth), strict=True))
            ),
            microseconds=ChainTimes(wire=350.0 * depth, head=210.0),
            traversal_ms=traversal,
            scheduler=Scheduler(
                running=len(mine),
                waiting=int(2 + 2 * math.sin(now / 9)) if self.users else 0,
                in_flight=min(depth, rows),
                kv_total=_KV_TOKENS,
                kv_used=sum(request.done_tokens for request in mine),
                steps=steps,
                rows=steps * rows,
                prompt_tokens=int(now * 30),
                completion_tokens=tokens,
            ),
            requests=mine,
            steps=tuple(
                Step(
                    number=steps - place,
                    rows=rows,
                    sequences=rows,
                    age_ms=round((now * 1000) % period + place * period, 2),
                )
                for place in reversed(range(min(depth, rows)))
            ),
        )

    def _tokens(self, now: float) -> float:
        """Answer tokens of all users since the beginning; their rate swings."""
        return self.users * 9.0 * (now + 0.3 * 7 * (1 - math.cos(now / 7))) + self._sent

    def _others(self, now: float) -> Iterator[Request]:
        """Answers of users that do not exist: each user asks again and again."""
        for user in range(self.users):
            length = 30 + 7 * user
            turn, age = divmod(now + 5 * user, length)
            request = f"chatcmpl-{user:02x}{int(turn):06x}"
            done = int(age * 9)
            prompt = 200 + 37 * user
            if request not in self._cancelled:
                yield Request(
                    id=request,
                    client=f"192.168.7.{150 + user}",
                    state="prefill" if age < 0.5 else "decode",
                    prompt_tokens=prompt,
                    cached_tokens=prompt // 3,
                    done_tokens=prompt + done,
                    completion_tokens=done,
                    max_tokens=9 * length,
                    age_seconds=round(age, 2),
                    tokens_per_second=9.0 if done else None,
                )

    def _asked(self, now: float) -> Iterator[Request]:
        """The answers that are really being sent."""
        for answer in self.answers.values():
            seconds = now - answer.first if answer.first is not None else 0.0
            yield Request(
                id=answer.id,
                client=answer.client,
                state="decode" if answer.sent else "prefill",
                prompt_tokens=answer.prompt_tokens,
                done_tokens=answer.prompt_tokens + answer.sent,
                completion_tokens=answer.sent,
                max_tokens=answer.max_tokens,
                age_seconds=round(now - answer.began, 2),
                tokens_per_second=round((answer.sent - 1) / seconds, 1) if answer.sent > 1 and seconds > 0 else None,
            )


def _layers(stages: int) -> list[tuple[int, int]]:
    edges = [round(MODEL.layers * place / stages) for place in range(stages + 1)]
    return list(pairwise(edges))


def _prediction(stages: int, users: int) -> Prediction:
    one = 1000 / (_STEP_MS * stages)
    return Prediction(
        one_user=round(one, 1),
        users=users,
        many_users=round(one * min(users, stages), 1),
        first_token_ms=round(40 * stages),
    )


def _rate(split: list[list[int]], users: int) -> float:
    each = max(users // len(split), 1)
    return round(sum(_prediction(len(chain), each).many_users for chain in split), 1)
