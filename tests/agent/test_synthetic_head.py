"""The stand-in for a head with many nodes speaks as a head does: the screen's own client understands all of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import TypeVar

import pytest
import pytest_asyncio

from agent.bench.screen.marked_text import MARK, text
from agent.bench.screen.scene import Scene
from agent.bench.screen.synthetic_head import SyntheticHead
from agent.bench.tui import ScreenEffort, run
from shards.progress import silent
from tui.client.errors import HeadError, HeadGoneError, RefusedError
from tui.client.head_client import End, HeadClient, Message, Piece

T = TypeVar("T")
ASKED = [Message("user", "Where does a token go?")]


@pytest.fixture(scope="module")
def head() -> Iterator[SyntheticHead]:
    with SyntheticHead(nodes=20, users=3, rate=2000) as head:
        yield head


@pytest_asyncio.fixture
async def client(head: SyntheticHead) -> AsyncIterator[HeadClient]:
    client = HeadClient(head.url)
    yield client
    await client.close()


def test_the_text_is_the_same_each_time_and_its_marks_are_whole() -> None:
    assert text(5000) == text(5000) and len(text(5000)) == 5000
    assert [int(mark) for mark in MARK.findall(text(20_000))] == list(range(len(MARK.findall(text(20_000)))))
    assert "```python" in text(5000)


@pytest.mark.parametrize("nodes", [1, 2, 3, 20, 100])
def test_a_fleet_of_any_size_is_whole(nodes: int) -> None:
    scene = Scene(nodes)
    for now in (0.0, 0.4, 100.0):
        fleet = scene.fleet(now)
        assert len(fleet.nodes) == nodes
        for chain in fleet.chains:
            edges = [stage.layers for stage in chain.stages]
            assert edges[0][0] == 0 and edges[-1][1] == fleet.model.layers
            assert all(end == begin for (_, end), (begin, _) in pairwise(edges))
    assert scene.plan({}).is_current
    assert scene.plan({"stages": 1}).is_current == (nodes == 1)


async def test_the_client_understands_it(client: HeadClient) -> None:
    fleet = await client.fleet()
    assert len(fleet.nodes) == 20 and len(fleet.chains) == 2 and fleet.requests
    assert await client.count(ASKED) > 0
    preview = await client.plan(users=4)
    assert preview.wish.users == 4 and preview.plan.chains
    assert (await client.node("pc-3")).node.name == "pc-3"
    with pytest.raises(RefusedError, match="pc-99"):
        await client.node("pc-99")
    with pytest.raises(RefusedError, match="912 GB"):
        await client.apply(users=1000, context=1_000_000)


async def test_an_answer_is_streamed_with_marks_whose_times_are_known(head: SyntheticHead, client: HeadClient) -> None:
    head.play(tokens=200)
    items = [item async for item in client.chat(ASKED, {})]
    said = "".join(item.text for item in items if isinstance(item, Piece))
    end = items[-1]
    assert isinstance(end, End) and end.completion_tokens == 200 and end.finish_reason == "stop"
    assert end.timings is not None and len(end.timings.stages) == 9
    assert set(MARK.findall(said)) <= head.get("/synthetic/marks").keys()


async def test_an_answer_ends_in_an_error_when_a_node_is_lost_or_somebody_cancels(
    head: SyntheticHead, client: HeadClient
) -> None:
    head.play(tokens=100_000)

    async def broken_by(what: dict[str, object] | None) -> str:
        with pytest.raises(HeadError) as caught:
            async for number, _ in aenumerate(client.chat(ASKED, {})):
                if number == 10 and what is not None:
                    head.play(**what)
                elif number == 10:
                    (request,) = [one for one in (await client.fleet()).requests if one.client == "127.0.0.1"]
                    await client.cancel(request.id)
        return str(caught.value)

    assert "cancelled" in await broken_by(None)
    assert "pc-5 has left" in await broken_by({"lose": "pc-5"})
    assert "pc-5" not in (await client.fleet()).names.values()
    head.play(fail_after=20)
    assert "-9" in await broken_by({})


async def test_nodes_are_let_in_and_refused(head: SyntheticHead, client: HeadClient) -> None:
    head.play(knock="AAAA-BBBB", name="laptop")
    head.play(knock="CCCC-DDDD")
    assert [node.code for node in (await client.fleet()).pending] == ["AAAA-BBBB", "CCCC-DDDD"]
    assert await client.approve("AAAA-BBBB") == "pc-21"
    assert await client.refuse("CCCC-DDDD") == "CCCC-DDDD"
    fleet = await client.fleet()
    assert not fleet.pending and "pc-21" in fleet.names.values()


async def test_it_goes_and_comes_back_where_it_was() -> None:
    with SyntheticHead(nodes=2) as head:
        client = HeadClient(head.url)
        head.kill()
        with pytest.raises(HeadGoneError):
            await client.fleet()
        head.start()
        assert (await client.fleet()).nodes
        await client.close()


def test_the_screen_is_measured_before_it() -> None:
    report = run(ScreenEffort(nodes=3, seconds=1, keys=3, characters=5_000, pasted=5_000), silent)
    assert {row["what"] for row in report.results} == {"token to screen", "key to screen", "wheel to screen"}
    assert [target.what for target in report.targets if target.wanted == "true" and not target.ok] == []


async def aenumerate(items: AsyncIterator[T]) -> AsyncIterator[tuple[int, T]]:
    number = 0
    async for item in items:
        yield number, item
        number += 1
