"""What is told of a head that comes, goes, and wants a key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

from textual.message import Message
from told_head import ToldHead, error, fleet_state, told_head

from tui.client.fleet_watch import FleetWatch
from tui.client.head_client import HeadClient
from tui.client.watch import ConnectionChanged, FleetChanged


class Told:
    """Messages, as they come."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Message] = asyncio.Queue()

    async def state(self) -> str:
        """The next connection state."""
        while True:
            message = await asyncio.wait_for(self.queue.get(), 60)
            if isinstance(message, ConnectionChanged):
                return message.connection.state

    async def fleet(self) -> FleetChanged:
        """The next state of the fleet."""
        while True:
            message = await asyncio.wait_for(self.queue.get(), 60)
            if isinstance(message, FleetChanged):
                return message


@asynccontextmanager
async def watching(url: str, key: str | None = None) -> AsyncIterator[tuple[Told, FleetWatch, HeadClient]]:
    told, client = Told(), HeadClient(url, key)
    watch = FleetWatch(client, told.queue.put_nowait)
    task = asyncio.create_task(watch.run())
    try:
        yield told, watch, client
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await client.close()


async def test_a_head_goes_and_comes_back() -> None:
    head = ToldHead(fleet_state(events=[{"time": 1.0, "what": "begun"}]))
    other = ToldHead(fleet_state(events=[{"time": 3.0, "what": "begun again"}]))
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(told_head(head=head))
        async with watching(head.url) as (told, _, _):
            assert await told.state() == "up"
            change = await told.fleet()
            assert (change.news, change.fleet.model.name) == ((), "SmolLM2-135M")
            head.state["events"].append({"time": 2.0, "what": "pc-2 left"})
            while not (change := await told.fleet()).news:
                pass
            assert [event.what for event in change.news] == ["pc-2 left"]
            first.close()
            assert await told.state() == "gone"
            second.enter_context(told_head(urlsplit(head.url).port or 0, other))
            assert await told.state() == "up"
            change = await told.fleet()
            assert [event.what for event in change.news] == ["begun again"]
            assert len(change.history.queue) > 1


async def test_a_head_that_wants_a_key(head: ToldHead) -> None:
    head.key = "s3cret"
    async with watching(head.url) as (told, watch, client):
        assert await told.state() == "locked"
        client.key = "wrong"
        watch.retry()
        assert await told.state() == "locked"
        client.key = "s3cret"
        watch.retry()
        assert await told.state() == "up"


async def test_what_is_there_is_no_head(head: ToldHead) -> None:
    head.answers["GET /fleet"] = (404, error("there is no /fleet here \x1b[2J"))
    async with watching(head.url) as (told, _, _):
        message = await asyncio.wait_for(told.queue.get(), 60)
        assert isinstance(message, ConnectionChanged)
        assert message.connection.state == "gone"
        assert "no /fleet here" in message.connection.why
        assert "\x1b" not in message.connection.why
