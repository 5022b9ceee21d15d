"""A server with little room, over the real thing: who waits, who is refused, and where answers end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from agent.serving import Serving
from pipeline.running import RunOptions
from pipeline.snapshots import SchedulerSnapshot

PATIENCE = 60.0
KV_TOKENS = 512
OPTIONS = RunOptions(mode="exact", kv_tokens=KV_TOKENS, max_sequences=1, max_waiting=2, prefix_cache=False)
LONG = {"prompt": "Once upon a time", "max_tokens": 400, "logit_bias": {"2": -100}, "temperature": 0}


@pytest.fixture(scope="module")
def serving(smollm2_package: Path) -> Iterator[Serving]:
    with Serving(smollm2_package, OPTIONS, port=0) as running:
        yield running


class Client:
    """Asks, and looks at the scheduler."""

    def __init__(self, serving: Serving, stack: ExitStack) -> None:
        self._serving, self._stack = serving, stack
        self.http = stack.enter_context(httpx.Client(base_url=serving.url, timeout=PATIENCE, trust_env=False))

    def begin(self, **fields: object) -> httpx.Response:
        """A streamed answer, up to its headers."""
        request = self.http.build_request("POST", "/v1/completions", json={**LONG, "stream": True, **fields})
        response = self.http.send(request, stream=True)
        self._stack.callback(response.close)
        return response

    def wait(self, reached: Callable[[SchedulerSnapshot], bool]) -> SchedulerSnapshot:
        end = time.monotonic() + PATIENCE
        while not reached(shot := self._serving.model.copies[0].head.snapshot().scheduler):
            assert time.monotonic() < end, shot
            time.sleep(0.01)
        return shot


@pytest.fixture
def client(serving: Serving) -> Iterator[Client]:
    with ExitStack() as stack:
        yield Client(serving, stack)


def test_who_leaves_the_queue_makes_a_place_in_it(client: Client) -> None:
    client.begin(user="runs")
    client.wait(lambda shot: shot.running == 1)
    leaving = client.begin(user="waits", service_tier="flex")
    client.begin(user="waits, too")
    shot = client.wait(lambda shot: shot.waiting == 2)
    assert shot.waiting_batch == 1
    refused = client.http.post("/v1/completions", json=LONG)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
    assert "2 requests wait and at most 2 may" in refused.json()["error"]["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    leaving.close()
    client.wait(lambda shot: shot.waiting == 1)
    assert client.begin(user="comes later").status_code == 200
    client.wait(lambda shot: shot.waiting == 2)
    page = client.http.get("/metrics").text
    assert 'edge_agent_answers_total{reason="refused"} 1.0' in page
    assert 'edge_agent_waiting{service="interactive"} 2.0' in page


def test_a_call_that_is_refused_in_part_leaves_nothing_of_it(client: Client) -> None:
    client.wait(lambda shot: not (shot.running or shot.waiting))
    client.begin()
    client.wait(lambda shot: shot.running == 1)
    assert client.http.post("/v1/completions", json={**LONG, "n": 3}).status_code == 429
    client.wait(lambda shot: shot.running == 1 and not shot.waiting)


def test_an_answer_may_fill_the_cache_and_ends_in_length_there(client: Client) -> None:
    client.wait(lambda shot: not (shot.running or shot.waiting))
    for fields in ({"max_tokens": 10**6}, {"max_tokens": None}):
        body = {**LONG, "prompt": [504] * (KV_TOKENS - 20), **fields}
        answer = client.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        assert answer.json()["usage"]["total_tokens"] == KV_TOKENS + 1  # the last token need not be kept
    assert "edge_agent_queue_seconds_count 2.0" in client.http.get("/metrics").text


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(client: Client) -> None:
    answer = client.http.post("/v1/completions", json={**LONG, "prompt": [504] * (KV_TOKENS + 1)})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
    assert f"{KV_TOKENS + 1} tokens" in answer.json()["error"]["message"]
    assert f"holds {KV_TOKENS}" in answer.json()["error"]["message"]
