"""The API over the real thing: a model in two stage processes, real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from eventually import eventually

from agent.client import Client
from agent.server import is_loopback
from agent.serving import Serving
from pipeline.running import RunOptions
from shards.errors import ConfigurationError, EdgeAgentError, PackageError
from tui.client.state import Fleet

OPTIONS = RunOptions(stages=2, mode="exact", kv_tokens=4096)
QUESTIONS = (
    "What is the capital of France?",
    "Name three rivers.",
    "Write a haiku about snow.",
    "What is 2 + 2?",
    "Say hello in Spanish.",
    "Who wrote Hamlet?",
    "List the primary colours.",
    "Why is the sky blue?",
)


@pytest.fixture(scope="module")
def serving(smollm2_package: Path) -> Iterator[Serving]:
    with Serving(smollm2_package, OPTIONS, port=0) as running:
        yield running


@pytest.fixture
def http(serving: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=serving.url, timeout=120, trust_env=False) as client:
        yield client


def ask(http: httpx.Client, question: str, **fields: object) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24, **fields}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_it_answers_paris(http: httpx.Client) -> None:
    answer = ask(http, "What is the capital of France?")
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_streamed_whole_and_beside_others_the_text_is_the_same(serving: Serving, http: httpx.Client) -> None:
    alone = [ask(http, question)["choices"][0]["message"]["content"] for question in QUESTIONS]

    def streamed(question: str) -> str:
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24}
        with Client(serving.url) as client:
            return "".join(
                choice["delta"].get("content", "") for chunk in client.stream_chat(body) for choice in chunk["choices"]
            )

    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        assert list(pool.map(streamed, QUESTIONS)) == alone


def test_a_seed_repeats_an_answer_and_choices_differ(http: httpx.Client) -> None:
    fields = {"temperature": 1.5, "n": 2, "seed": 11, "max_tokens": 16}
    first, second = (
        [choice["message"]["content"] for choice in ask(http, "Tell me a story.", **fields)["choices"]] for _ in "ab"
    )
    assert first == second
    assert first[0] != first[1]


def test_logprobs_of_a_greedy_answer(http: httpx.Client) -> None:
    answer = ask(http, "What is the capital of France?", logprobs=True, top_logprobs=2)
    for entry in answer["choices"][0]["logprobs"]["content"]:
        assert entry["logprob"] <= 0
        assert entry["token"] == entry["top_logprobs"][0]["token"]
        assert len(entry["top_logprobs"]) == 2


def test_usage_tells_what_the_prefix_cache_saved(http: httpx.Client) -> None:
    question = "Repeat the word banana. " * 20
    ask(http, question)
    usage = ask(http, question)["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_prompt_over_the_context_or_the_cache_names_both_numbers(serving: Serving, http: httpx.Client) -> None:
    context = serving.model.manifest.facts.context_length
    for tokens, limit in ((context + 10, context), (5000, 4096)):
        response = http.post("/v1/completions", json={"prompt": [504] * tokens})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == "prompt"
        assert str(tokens) in error["message"]
        assert str(limit) in error["message"]
    assert http.post("/v1/completions", json={"prompt": [10**6]}).json()["error"]["param"] == "prompt"


def test_fleet_shows_the_chain(serving: Serving, http: httpx.Client) -> None:
    ask(http, "Hello")
    fleet = http.get("/fleet").json()
    stages = fleet["chains"][0]["stages"]
    assert [stage["layers"][0] for stage in stages] == [0, stages[0]["layers"][1]]
    assert stages[-1]["layers"][1] == fleet["model"]["layers"]
    assert all(stage["microseconds"]["compute"] > 0 for stage in stages)
    assert fleet["chains"][0]["scheduler"]["steps"] > 0
    assert fleet["chains"][0]["failure"] is None
    page = http.get("/metrics").text
    assert 'edge_agent_step_seconds{chain="0",part="stage 1 compute"}' in page


def test_fleet_shows_requests_and_steps_at_work(serving: Serving, http: httpx.Client) -> None:
    body = {"prompt": "Once upon a time", "stream": True, "max_tokens": 2000, "logit_bias": {"2": -100}, "user": "ann"}
    with http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        for _ in range(20):
            next(lines)
        with httpx.Client(base_url=serving.url, timeout=120, trust_env=False) as other:
            looks = [Fleet.model_validate(other.get("/fleet").json()).chains[0] for _ in range(10)]
            (request,) = looks[-1].requests
            assert other.post("/fleet/cancel", json={"request": request.id}).status_code == 200
        last = [line for line in lines if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "cancelled"
    assert (request.client, request.state, request.max_tokens) == ("ann", "decode", 2000)
    assert request.prompt_tokens <= request.done_tokens <= request.prompt_tokens + request.completion_tokens
    assert request.tokens_per_second is not None and request.tokens_per_second > 0
    assert any(chain.steps for chain in looks)
    for stage in looks[-1].stages:
        assert stage.use is not None and 0 < stage.use <= 1
    hidden, tokens = (stage.sent_bytes for stage in looks[-1].stages)
    assert hidden > tokens > 0
    assert (looks[-1].traversal_ms or 0) > 0


def test_an_answer_tells_where_its_time_went(serving: Serving, http: httpx.Client) -> None:
    timings = ask(http, "Count to ten.", logit_bias={"2": -100})["timings"]
    assert timings["first_token_ms"] > 0 and timings["tokens_per_second"] > 0
    assert [stage["node"] for stage in timings["stages"]] == ["stage 1", "stage 2"]
    assert all(stage["compute"] > 0 and stage["wait"] >= 0 for stage in timings["stages"])
    assert timings["head"] > 0


def test_a_client_that_leaves_frees_its_place(serving: Serving, http: httpx.Client) -> None:
    body = {"prompt": "Once upon a time", "stream": True, "max_tokens": 2000, "logit_bias": {"2": -100}}
    with http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()  # held: without it the response would be closed
        next(lines)
        assert serving.model.copies[0].head.snapshot().scheduler.running == 1
    assert eventually(lambda: serving.model.copies[0].head.snapshot().scheduler.running == 0)


def test_a_taken_port_is_reported_before_anything_is_loaded(serving: Serving, smollm2_package: Path) -> None:
    port = int(serving.url.rpartition(":")[2])
    with pytest.raises(ConfigurationError, match=str(port)):
        Serving(smollm2_package, OPTIONS, port=port)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.invalid"])
def test_nobody_else_comes_in_without_a_key(smollm2_package: Path, host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigurationError, match="API key"):
        Serving(smollm2_package, OPTIONS, host=host, port=0)


def test_what_is_no_package_leaves_nothing_behind(tmp_path: Path) -> None:
    before = psutil.Process().children()
    with pytest.raises(PackageError):
        Serving(tmp_path, OPTIONS, port=0)
    assert psutil.Process().children() == before


def test_a_stage_that_dies_in_mid_answer(smollm2_package: Path) -> None:
    with Serving(smollm2_package, OPTIONS, port=0) as running, Client(running.url) as client:
        body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 2000, "logit_bias": {"2": -100}}
        chunks = client.stream_chat(body)
        next(chunks)
        next(chunks)
        psutil.Process(running.model.copies[0].chain.stages[1].pid).kill()
        with pytest.raises(EdgeAgentError) as caught:
            list(chunks)
        assert "stage 2" in str(caught.value)
        health = httpx.get(f"{running.url}/healthz", timeout=120, trust_env=False)
        assert health.status_code == 503
        assert "stage 2" in json.dumps(health.json())
        with pytest.raises(EdgeAgentError, match="stage 2"):
            next(client.stream_chat(body))
