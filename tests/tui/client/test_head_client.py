"""The client against a head over real HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio
from told_head import ToldHead, chunk, error, fleet_state, node

from tui.client.errors import HeadError, HeadGoneError, KeyWantedError, RefusedError
from tui.client.head_client import End, HeadClient, Message, Piece

DONE = b"data: [DONE]\n\n"
ASKED = [Message("system", "Be brief."), Message("user", "Hello [b]there[/b] \ud83d")]


@pytest_asyncio.fixture
async def client(head: ToldHead) -> AsyncIterator[HeadClient]:
    made = HeadClient(head.url)
    yield made
    await made.close()


async def whole(client: HeadClient, **settings: Any) -> tuple[str, End]:
    """An answer's text and end."""
    parts = [part async for part in client.chat(ASKED, settings)]
    assert all(isinstance(part, Piece) for part in parts[:-1])
    assert isinstance(parts[-1], End)
    return "".join(part.text for part in parts if isinstance(part, Piece)), parts[-1]


async def test_the_state_is_read_with_fields_of_other_versions(client: HeadClient) -> None:
    fleet = await client.fleet()
    assert fleet.names == {"key-1": "pc-1", "key-2": "pc-2"}
    assert fleet.chains[0].stages[1].layers == (15, 30)
    assert fleet.chains[0].scheduler.waiting == 2
    assert fleet.chains[0].stages[0].use == 0.5


async def test_an_answer_streams_to_its_end(head: ToldHead, client: HeadClient) -> None:
    usage = {"prompt_tokens": 20, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 16}}
    timings = {
        "first_token_ms": 12.5,
        "tokens_per_second": None,
        "stages": [{"node": "pc-1", "compute": 3.0, "wait": 1.0}],
        "wire": 0.5,
        "head": 0.1,
        "acceptance": None,
    }
    last = {"choices": [], "usage": usage, "timings": timings}
    head.stream = lambda: iter([{"choices": []}, chunk("Hel"), chunk("lo"), chunk(finish="stop"), last, DONE])
    text, end = await whole(client, temperature=0.5, seed=7)
    assert text == "Hello"
    assert (end.finish_reason, end.prompt_tokens, end.cached_tokens, end.completion_tokens) == ("stop", 20, 16, 2)
    assert end.timings is not None
    assert (end.timings.stages[0].node, end.timings.stages[0].compute, end.timings.tokens_per_second) == (
        "pc-1",
        3.0,
        None,
    )
    body = head.bodies("POST /v1/chat/completions")[0]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["seed"], body["stream"]) == (0.5, 7, True)
    assert body["stream_options"] == {"include_usage": True}


async def test_separators_inside_a_text_do_not_end_a_line(head: ToldHead, client: HeadClient) -> None:
    said = "a\u2028b\u2029c\x85d\x1ee\x0bf\r\ng"
    data = b"data: " + json.dumps(chunk(said), ensure_ascii=False).encode() + b"\n\n"
    pieces = [data[at : at + 3] for at in range(0, len(data), 3)]
    head.stream = lambda: iter([*pieces, chunk(finish="length"), DONE])
    text, end = await whole(client)
    assert text == said
    assert (end.finish_reason, end.timings) == ("length", None)


async def test_leaving_an_answer_ends_it_at_the_head(head: ToldHead, client: HeadClient) -> None:
    def endless() -> Any:
        while True:
            yield chunk("x")
            yield 0.01

    head.stream = endless
    async with aclosing(client.chat(ASKED, {})) as answer:
        async for _ in answer:
            break
    assert head.broken_off.wait(60)


async def test_an_answer_that_breaks_off_is_no_answer(head: ToldHead, client: HeadClient) -> None:
    head.stream = lambda: iter([chunk("Hel")])
    said = []
    with pytest.raises(HeadGoneError, match="broke off"):
        async for part in client.chat(ASKED, {}):
            said.append(part)
    assert said == [Piece("Hel")]


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (error("pc-2 \x1b[31mleft", "server_error"), HeadError),
        (error("cancelled by the fleet's keeper"), RefusedError),
        (b"data: not JSON\n\n", HeadError),
        (b"data: [1]\n\n", HeadError),
        (b'data: {"choices": 3}\n\n', HeadError),
        ({"choices": [], "usage": {"prompt_tokens": "many"}}, HeadError),
    ],
)
async def test_an_answer_that_ends_in_an_error(
    head: ToldHead, client: HeadClient, event: Any, kind: type[HeadError]
) -> None:
    head.stream = lambda: iter([chunk("Hel"), event, DONE])
    with pytest.raises(HeadError) as caught:
        await whole(client)
    assert type(caught.value) is kind
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "answer", "kind", "words"),
    [
        (401, error("this server wants its key"), KeyWantedError, "wants its key"),
        (401, b"", KeyWantedError, "wants a key"),
        (404, error("there is no request 'x'"), RefusedError, "no request"),
        (429, error("too much to do", "rate_limit_error"), HeadError, "too much"),
        (503, error("a stage failed", "server_error"), HeadError, "a stage failed"),
        (502, b"<html>", HeadError, "502"),
        (302, b"", HeadError, "302"),
    ],
)
async def test_refusals(
    head: ToldHead, client: HeadClient, status: int, answer: Any, kind: type[HeadError], words: str
) -> None:
    head.answers["POST /fleet/cancel"] = (status, answer)
    head.answers["POST /v1/chat/completions"] = (status, answer)
    for ask in (client.cancel("x"), whole(client)):
        with pytest.raises(HeadError, match=words) as caught:
            await ask
        assert type(caught.value) is kind


async def test_what_answers_is_no_head(head: ToldHead, client: HeadClient) -> None:
    head.answers["GET /fleet"] = (200, b"hello")
    with pytest.raises(HeadError, match="not a head"):
        await client.fleet()
    head.answers["GET /fleet"] = (200, {"model": {"name": "m"}})
    with pytest.raises(HeadError, match=r"model\.layers"):
        await client.fleet()


async def test_nobody_answers() -> None:
    client = HeadClient("http://127.0.0.1:1")
    with pytest.raises(HeadGoneError, match="no head answers"):
        await client.fleet()
    with pytest.raises(HeadGoneError, match="no head answers"):
        await whole(client)
    await client.close()


async def test_an_impossible_address() -> None:
    client = HeadClient("htp://nowhere")
    with pytest.raises(HeadError, match="not an address"):
        await client.fleet()
    await client.close()


async def test_a_key_can_be_given_later(head: ToldHead, client: HeadClient) -> None:
    head.key = "s3cret"
    with pytest.raises(KeyWantedError):
        await client.fleet()
    client.key = "s3cret"
    assert (await client.fleet()).model.name == "SmolLM2-135M"
    client.key = None
    with pytest.raises(KeyWantedError):
        await client.fleet()


async def test_looking_after_the_fleet(head: ToldHead, client: HeadClient) -> None:
    prediction = {"one_user": 1.0, "users": 2, "many_users": 2.0, "first_token_ms": 3.0}
    stage = {"node": "key-1", "first_layer": 0, "end_layer": 30, "memory": 5}
    plan = {
        "chains": [{"stages": [stage], "users": 2, "kv_tokens": 9, "prediction": prediction}],
        "prediction": prediction,
    }
    preview = {"wish": {"users": 2}, "nodes": {"key-1": "pc-1"}, "plan": plan, "current": 1.5, "is_current": False}
    detail = {"node": node("pc 2/ö", "key-2"), "checks": [{"topic": "memory", "status": "ok", "what": "fine"}]}
    head.answers |= {
        "POST /tokenize": (200, {"count": 12, "max_model_len": 8192, "tokens": [1] * 12}),
        "POST /fleet/cancel": (200, {"request": "r"}),
        "POST /fleet/approve": (200, {"node": "pc-3"}),
        "POST /fleet/refuse": (200, {"node": "pc-3"}),
        "POST /fleet/forget": (200, {"node": "pc-2"}),
        "POST /fleet/apply": (200, {"wish": {}}),
        "GET /fleet/plan?users=2&replicas=false": (200, preview),
        "GET /fleet/nodes/pc%202%2F%C3%B6": (200, detail),
    }
    assert await client.count(ASKED) == 12
    await client.cancel("r")
    assert [await client.approve("C"), await client.refuse("C"), await client.forget("pc-2")] == [
        "pc-3",
        "pc-3",
        "pc-2",
    ]
    shown = await client.plan(users=2, stages=None, replicas=False)
    assert (shown.plan.prediction.many_users, shown.current) == (2.0, 1.5)
    await client.apply(users=2, context=None, replicas=False)
    assert (await client.node("pc 2/ö")).checks[0].topic == "memory"
    assert head.bodies("POST /fleet/apply") == [{"users": 2, "replicas": False}]
    assert head.bodies("POST /fleet/cancel") == [{"request": "r"}]


@pytest.mark.parametrize("answer", [[], {}, {"node": 3}, None])
async def test_an_answer_without_what_was_asked(head: ToldHead, client: HeadClient, answer: Any) -> None:
    head.answers["POST /fleet/approve"] = head.answers["POST /tokenize"] = (200, answer)
    asks: tuple[Callable[[], Awaitable[object]], ...] = (lambda: client.approve("C"), lambda: client.count(ASKED))
    for ask in asks:
        with pytest.raises(HeadError, match="not understood"):
            await ask()


async def test_the_proxies_of_the_environment_are_not_asked(head: ToldHead, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    client = HeadClient(head.url)
    assert (await client.fleet()).parked == fleet_state()["parked"]
    await client.close()


_STRANGE: list[bytes] = [
    b'{"choices": [{"delta": {"content": 5}}]}',
    b'{"choices": [{"delta": {"content": ["a"]}}]}',
    b'{"choices": [{"delta": {}, "finish_reason": {"a": 1}}]}',
    b'{"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1e999}}',
    b'{"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": ' + b"9" * 400 + b"}}",
    b'{"choices": ' + b"[" * 100_000,
]


@pytest.mark.parametrize("event", _STRANGE, ids=range(len(_STRANGE)))
async def test_an_answer_of_a_strange_shape_is_an_error(head: ToldHead, client: HeadClient, event: bytes) -> None:
    head.stream = lambda: iter([b"data: " + event + b"\n\n", DONE])
    with pytest.raises(HeadError, match="not understood"):
        await whole(client)


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"error": ' + b"[" * 100_000, b"9" * 400, b"NaN", b"1e99"], ids=range(5)
)
@pytest.mark.parametrize("status", [200, 500])
async def test_a_state_of_a_strange_shape_is_an_error(
    head: ToldHead, client: HeadClient, body: bytes, status: int
) -> None:
    head.answers["GET /fleet"] = status, body
    with pytest.raises(HeadError):
        await client.fleet()


async def test_a_port_that_there_cannot_be_is_an_error() -> None:
    client = HeadClient("http://127.0.0.1:99999")
    with pytest.raises(HeadGoneError):
        await client.fleet()
    with pytest.raises(HeadGoneError):
        await whole(client)
    await client.close()
