"""What clients of all kinds ask of a server in a soak, and whether each of them gets its one end."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import httpx

Manner = Literal["whole", "stream", "leaves early", "leaves midway", "is cancelled"]
"""How an answer is taken. Who leaves closes the connection; who is cancelled is so by the server's owner."""

_MANNERS: tuple[Manner, ...] = (
    "whole", "whole", "whole", "stream", "stream", "stream", "stream",
    "leaves early", "leaves midway", "leaves midway", "is cancelled",
)  # fmt: skip
_CLIENTS, _OPENINGS = 5, 3
_SHARED_TOKENS, _OWN_TOKENS, _NEW_TOKENS = (0, 0, 48, 160), (1, 7, 30, 120), (1, 4, 16, 48)
_EARLIEST_TOKEN = 100
"""Those before may be special."""

PATIENCE_SECONDS = 900.0
"""An answer that takes longer is taken for one that never comes. On a slow PC batch requests give way for minutes."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, and how its answer is taken."""

    prompt: tuple[int, ...]
    new_tokens: int
    choices: int
    client: str
    is_batch: bool
    manner: Manner
    leaves_after: int
    """Hundredths of a second, or pieces of the answer."""


def asks(vocabulary: int, seed: int = 0) -> Iterator[Ask]:
    """Endless random requests: prompts of a few lengths, half of which begin alike."""
    pick = random.Random(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(pick.randrange(_EARLIEST_TOKEN, vocabulary) for _ in range(count))

    openings = [tokens(max(_SHARED_TOKENS)) for _ in range(_OPENINGS)]
    while True:
        yield Ask(
            prompt=pick.choice(openings)[: pick.choice(_SHARED_TOKENS)] + tokens(pick.choice(_OWN_TOKENS)),
            new_tokens=pick.choice(_NEW_TOKENS),
            choices=pick.choice((1, 1, 1, 2)),
            client=f"client {pick.randrange(_CLIENTS)}",
            is_batch=pick.random() < 0.25,
            manner=pick.choice(_MANNERS),
            leaves_after=pick.randint(0, 8),
        )


class Crowd:
    """Users of a server, each of which asks again when it has had its answer.

    Args:
        url: Where the server is.
        users: How many ask at the same time.
    """

    def __init__(self, url: str, users: int) -> None:
        self._url, self._users = url, users
        self.ends: Counter[str] = Counter()
        """How the requests ended for the users."""
        self.faults: list[str] = []
        """What was wrong with an end."""
        self.asked = 0
        """Answers asked for by those who waited at least for the first of it."""
        self.unsure = 0
        """Answers asked for by the others, who may have left before the server had read the request."""

    def work(self, wanted: Sequence[Ask], done: Callable[[int], None]) -> None:
        """Ask everything and take the answers; the connections are closed when this returns."""
        asyncio.run(self._work(wanted, done))

    async def _work(self, wanted: Sequence[Ask], done: Callable[[int], None]) -> None:
        left = iter(enumerate(wanted))
        limits = httpx.Limits(max_connections=None)
        timeout = httpx.Timeout(PATIENCE_SECONDS)
        async with httpx.AsyncClient(base_url=self._url, timeout=timeout, limits=limits, trust_env=False) as http:

            async def user() -> None:
                for number, ask in left:
                    await self._take(http, ask)
                    done(number + 1)

            async with asyncio.TaskGroup() as group:
                for _ in range(self._users):
                    group.create_task(user())

    async def _take(self, http: httpx.AsyncClient, ask: Ask) -> None:
        if ask.manner == "leaves early":
            self.unsure += ask.choices
        else:
            self.asked += ask.choices
        try:
            if ask.manner == "whole":
                self._hear_whole(ask, await http.post("/v1/completions", json=_body(ask, stream=False)))
            elif ask.manner == "leaves early":
                await self._leave_early(http, ask)
            else:
                async with http.stream("POST", "/v1/completions", json=_body(ask, stream=True)) as response:
                    await self._hear_stream(http, ask, response)
        except (httpx.HTTPError, ValueError) as error:
            self.faults.append(f"{ask.manner}: {error!r}")

    async def _leave_early(self, http: httpx.AsyncClient, ask: Ask) -> None:
        try:
            async with asyncio.timeout(ask.leaves_after / 100):
                await http.post("/v1/completions", json=_body(ask, stream=bool(ask.leaves_after % 2)))
            self.ends["ended before the client left"] += 1
        except TimeoutError:
            self.ends["left before the first token"] += 1

    def _hear_whole(self, ask: Ask, response: httpx.Response) -> None:
        if response.status_code != 200:
            self.faults.append(f"status {response.status_code}: {response.text[:200]}")
            return
        reasons = [choice["finish_reason"] for choice in response.json()["choices"]]
        self._end(ask, reasons, "whole")

    async def _hear_stream(self, http: httpx.AsyncClient, ask: Ask, response: httpx.Response) -> None:
        if response.status_code != 200:
            self.faults.append(f"status {response.status_code}: {(await response.aread())[:200]!r}")
            return
        pieces = 0
        reasons: list[str] = []
        ends: list[str] = []
        async for data in _events(response.aiter_bytes()):
            if ends:
                self.faults.append(f"after the end came {data[:100]}")
            if data == "[DONE]":
                ends.append("done")
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                ends.append(chunk["error"]["code"])
                continue
            reasons += [choice["finish_reason"] for choice in chunk["choices"] if choice["finish_reason"]]
            if pieces == ask.leaves_after and ask.manner == "leaves midway":
                self.ends["left in mid-answer"] += 1
                return
            if pieces == ask.leaves_after and ask.manner == "is cancelled":
                await self._cancel(http, chunk["id"].removeprefix("cmpl-"))
            pieces += 1
        if ends == ["cancelled"] and ask.manner == "is cancelled":
            self.ends["cancelled by the owner"] += 1
        elif ends == ["done"]:
            self._end(ask, reasons, "streamed")
        else:
            self.faults.append(f"{ask.manner}: the ends are {ends}")

    async def _cancel(self, http: httpx.AsyncClient, name: str) -> None:
        response = await http.post("/fleet/cancel", json={"request": f"{name}/0"})
        if response.status_code not in (200, 404):  # 404: it has just ended
            self.faults.append(f"cancel: status {response.status_code}: {response.text[:200]}")

    def _end(self, ask: Ask, reasons: list[str], how: str) -> None:
        if len(reasons) == ask.choices and set(reasons) <= {"stop", "length"}:
            self.ends[how] += 1
        else:
            self.faults.append(f"{how}: {ask.choices} choices ended as {reasons}")


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The data of server-sent events. A text may hold what `splitlines` takes for the end of a line."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line:
                yield line.decode().removeprefix("data: ")


def _body(ask: Ask, *, stream: bool) -> dict[str, Any]:
    return {
        "prompt": list(ask.prompt),
        "max_tokens": ask.new_tokens,
        "n": ask.choices,
        "temperature": 1.0,
        "user": ask.client,
        "service_tier": "flex" if ask.is_batch else "default",
        "stream": stream,
    }
