"""Requests and steps as GET /fleet tells them, and ending an answer by its id."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest
from eventually import eventually
from fake_head import CHAIN, HIDDEN_SIZE, RECEIVED, Api, StartApi, fake_chain, saying

from agent.answer_times import AnswerTimes
from agent.api.timings import Timings
from agent.metrics import Metrics
from agent.service import CancelledByOwnerError, TextService, Wanted
from pipeline.averages import StepLog
from pipeline.detokenizer import Detokenizer
from pipeline.messages import Sampling, StageTiming
from pipeline.replicas import Replicas
from pipeline.snapshots import RequestSnapshot, StepSnapshot
from pipeline.text_stream import TextStream
from pipeline.tokenizer import Tokenizer
from tui.client.state import Fleet, StageTimes

OWNER = {"Authorization": "Bearer the owner's key"}


@pytest.fixture
def api(start_api: StartApi, tokenizer: Tokenizer) -> Api:
    return start_api(saying(tokenizer, "word " * 2000, pause=0.01), hosts=("127.0.0.1", "192.168.1.7"))


@contextmanager
def streaming(api: Api, **fields: object) -> Iterator[Iterator[str]]:
    """An answer that has begun; its lines."""
    body = {"prompt": "x", "stream": True, "max_tokens": 2000, **fields}
    with api.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        yield lines


def cancel(api: Api, request: str, **headers: str) -> httpx.Response:
    return api.http.post("/fleet/cancel", json={"request": request}, headers=headers)


def error_of(lines: Iterator[str]) -> dict[str, str]:
    last = [line for line in lines if line][-1]
    error: dict[str, str] = json.loads(last.removeprefix("data: "))["error"]
    return error


def test_a_chain_that_has_done_nothing(api: Api) -> None:
    fleet = Fleet.model_validate(api.http.get("/fleet").json())
    (chain,) = fleet.chains
    assert (chain.id, chain.traversal_ms, chain.requests, chain.steps, fleet.parked) == (CHAIN, None, (), (), 0)
    assert [(stage.use, stage.microseconds) for stage in chain.stages] == [(None, None)] * 2


def test_a_chain_at_work(api: Api) -> None:
    head = api.head
    head.seen = (RequestSnapshot("abc/0", "ann", "decode", 10, 4, 12, 3, 100, 1.5, 20.0),)
    head.on_their_way = (StepSnapshot(5, 3, 3, 1.25), StepSnapshot(6, 1, 1, 0.5))
    head.rows = 104
    head.log.add_step(time.perf_counter(), 0.25, (StageTiming(1, 2, 3, 4), StageTiming(5, 6, 7, 8)))
    (chain,) = Fleet.model_validate(api.http.get("/fleet").json()).chains
    assert chain.requests[0].model_dump() == {
        "id": "abc/0",
        "client": "ann",
        "state": "decode",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "done_tokens": 12,
        "completion_tokens": 3,
        "max_tokens": 100,
        "age_seconds": 1.5,
        "tokens_per_second": 20.0,
    }
    assert [(step.number, step.rows, step.sequences, step.age_ms) for step in chain.steps] == [
        (5, 3, 3, 1.25),
        (6, 1, 1, 0.5),
    ]
    assert chain.traversal_ms == pytest.approx(250)
    assert [stage.microseconds for stage in chain.stages] == [
        StageTimes(wait=1, compute=2, send=3, queued=4),
        StageTimes(wait=5, compute=6, send=7, queued=8),
    ]
    assert all(stage.use is not None and 0 < stage.use < 0.01 for stage in chain.stages)
    assert [stage.sent_bytes for stage in chain.stages] == [100 * (2 + 2 * HIDDEN_SIZE), RECEIVED]
    page = api.http.get("/metrics").text
    assert 'edge_agent_step_seconds{chain="0",part="traversal"} 0.25' in page
    assert 'edge_agent_stage_use{chain="0",stage="1"}' in page


def test_a_streamed_answer_that_is_cancelled_ends_in_an_error(api: Api) -> None:
    with streaming(api) as lines:
        (request,) = api.head.requests
        assert cancel(api, request.id).json() == {"request": request.id}
        error = error_of(lines)
    assert (error["code"], error["type"]) == ("cancelled", "request_cancelled")
    assert "was cancelled" in error["message"]
    assert request.id in api.head.cancelled
    assert 'edge_agent_answers_total{reason="cancelled"} 1.0' in api.http.get("/metrics").text
    assert cancel(api, request.id).status_code == 404


def test_a_whole_answer_that_is_cancelled_is_an_error(api: Api) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(api.chat, max_tokens=2000)
        assert eventually(lambda: bool(api.head.requests))
        assert cancel(api, api.head.requests[0].id).status_code == 200
        answer = asked.result(90)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cancelled")
    assert "retry-after" not in answer.headers


def test_each_choice_is_a_request_and_the_call_ends_with_any_of_them(api: Api) -> None:
    with streaming(api, n=3) as lines, streaming(api) as others:
        assert eventually(lambda: len(api.head.requests) == 4)
        one = sorted(request.id for request in api.head.requests if request.id.endswith("/2"))
        assert len(one) == 1
        assert cancel(api, one[0]).status_code == 200
        assert error_of(lines)["code"] == "cancelled"
        call = one[0].removesuffix("/2")
        assert eventually(lambda: set(api.head.cancelled) == {f"{call}/{choice}" for choice in range(3)})
        assert '"text"' in next(line for line in others if line)


async def test_answers_that_wait_for_a_chain_can_be_cancelled(tokenizer: Tokenizer) -> None:
    replicas = Replicas()
    service = TextService(replicas, frozenset(), Metrics(lambda: []))
    detokenizer = Detokenizer(tokenizer, 49152)
    wanted = [Wanted((1,), Sampling(), 5, TextStream(detokenizer.stream(), ())) for _ in range(2)]
    answers = await service.start(wanted)
    assert replicas.parked == 2
    assert service.cancel(answers.request_id(1))
    assert replicas.parked == 0
    with pytest.raises(CancelledByOwnerError, match="cancelled"):
        assert [piece async for piece in answers.pieces()] == []
    assert not service.cancel(answers.request_id(0))


@pytest.mark.parametrize("request_id", ["", "nobody", "nobody/0", "/", "/0"])
def test_a_request_that_is_not_there(api: Api, request_id: str) -> None:
    with streaming(api):
        answer = cancel(api, request_id)
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "request")
    assert answer.json()["error"]["code"] == "request_not_found"


@pytest.mark.parametrize("body", [{}, {"request": 5}, {"request": "a", "more": 1}, {"request": "a" * 65}])
def test_a_body_that_is_none_is_refused_by_field(api: Api, body: dict[str, object]) -> None:
    answer = api.http.post("/fleet/cancel", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] in ("request", "more")


def test_in_a_fleet_it_wants_the_owners_key(start_api: StartApi, tokenizer: Tokenizer) -> None:
    script = saying(tokenizer, "word " * 2000, pause=0.01)
    api = start_api(script, fleet=SimpleNamespace(), fleet_key="the owner's key")
    with streaming(api) as lines:
        (request,) = api.head.requests
        assert cancel(api, request.id).status_code == 401
        assert cancel(api, request.id, Authorization="Bearer another").status_code == 401
        assert not api.head.cancelled
        assert cancel(api, request.id, **OWNER).status_code == 200
        assert error_of(lines)["code"] == "cancelled"


def test_timings_name_the_nodes_of_a_fleet(start_api: StartApi, tokenizer: Tokenizer) -> None:
    names = {"key a": "pc-1", "key b": "pc-[red]2"}
    fleet = SimpleNamespace(name_of=names.__getitem__)
    api = start_api(saying(tokenizer, "Fine."), hosts=tuple(names), fleet=fleet, fleet_key="k")
    api.head.log.add_step(time.perf_counter(), 0.25, (StageTiming(1, 2, 3), StageTiming(5, 6, 7)))
    stages = api.chat().json()["timings"]["stages"]
    assert [stage["node"] for stage in stages] == list(names.values())


def test_timings_of_a_chain_that_is_gone_name_its_stages(start_api: StartApi, tokenizer: Tokenizer) -> None:
    fleet = SimpleNamespace(name_of={}.__getitem__)
    api = start_api(saying(tokenizer, "Fine."), hosts=("key a",), fleet=fleet, fleet_key="k")
    api.head.log = type(api.head.log)(CHAIN + 1)
    api.head.log.add_step(time.perf_counter(), 0.25, (StageTiming(1, 2, 3),))
    assert api.chat().json()["timings"]["stages"][0]["node"] == "stage 1"


def test_an_answer_of_a_chain_that_ends_with_it_names_its_nodes() -> None:
    steps = StepLog(CHAIN)
    steps.add_step(1.0, 0.25, (StageTiming(1, 2, 3),))
    times = AnswerTimes(0.0)
    times.end(1.0, steps.last(1.0))
    retiring = (SimpleNamespace(chain=fake_chain(("key a",))),)
    model, fleet = SimpleNamespace(copies=(), retiring=retiring), SimpleNamespace(name_of={"key a": "pc-1"}.get)
    (stage,) = Timings(model, fleet).told(times)["stages"]  # type: ignore[arg-type]
    assert stage["node"] == "pc-1"


def test_what_a_request_calls_its_user_is_cut(api: Api) -> None:
    with streaming(api, user="u" * 10**6):
        (request,) = api.head.requests
        assert request.client == "u" * 256
