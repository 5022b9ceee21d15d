"""What the API refuses, and how it says so. The head is a fake, so that it can misbehave at will."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from eventually import eventually
from fake_head import Api, StartApi, saying, token_at

from agent import service
from pipeline.messages import Failed, Finished, Request, RequestEvent, TokenEvent, Usage
from pipeline.tokenizer import Tokenizer
from shards.errors import CapacityError, RequestError, StageError


@pytest.fixture
def api(start_api: StartApi, tokenizer: Tokenizer) -> Api:
    return start_api(saying(tokenizer, "Fine."))


def refusal(response: httpx.Response, status: int) -> dict[str, str | None]:
    assert response.status_code == status, response.text
    error: dict[str, str | None] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -3}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 100}, "stop"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"five": 1}}, "logit_bias.five.[key]"),
        ({"logit_bias": {"49152": 1}}, "logit_bias"),
        ({"seed": 2**70}, "seed"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "Hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"frobnicate": 1}, "frobnicate"),
        ({"stream_options": {"include_usage": True}}, None),
        ({"top_logprobs": 2}, None),
    ],
)
def test_a_field_that_is_wrong_is_named(api: Api, fields: dict[str, object], param: str | None) -> None:
    error = refusal(api.chat(**fields), 400)
    assert error["type"] == "invalid_request_error"
    if "logit_bias" in fields and param == "logit_bias":
        assert "49151" in str(error["message"])
    assert error["param"] == param
    assert next(iter(fields)) in str(error["message"])
    assert not api.head.requests


def test_the_body_must_be_json(api: Api) -> None:
    post = api.http.post
    headers = {"Content-Type": "application/json"}
    refusal(post("/v1/chat/completions", content=b"{not json", headers=headers), 400)
    refusal(post("/v1/chat/completions", content=b"", headers=headers), 400)
    for unreadable in (b'{"user": "\xff"}', b"[" * 200_000, b'{"seed": ' + b"9" * 6000 + b"}"):
        error = refusal(post("/v1/chat/completions", content=unreadable, headers=headers), 400)
        assert "not JSON that can be read" in str(error["message"])
    for other in (b"[1, 2]", b"null", b'"text"'):
        error = refusal(post("/v1/chat/completions", content=other, headers=headers), 400)
        assert error["message"] == "the body must be a JSON object"
    refusal(post("/v1/chat/completions", data={"messages": "Hi"}), 415)
    refusal(post("/v1/chat/completions", content=b'{"messages": []}'), 415)


@pytest.mark.parametrize("prompt", [[], [[]], [1, "two"], ["one", [2]], 5, {"text": "x"}, [1.5], [True], ["x"] * 99])
def test_prompts_of_no_known_shape(api: Api, prompt: object) -> None:
    assert refusal(api.complete(prompt), 400)["param"] == "prompt"


def test_unknown_models_and_addresses(api: Api) -> None:
    assert refusal(api.chat(model="gpt-4"), 404)["code"] == "model_not_found"
    refusal(api.http.get("/v1/models/gpt-4"), 404)
    refusal(api.http.get("/v1/nothing"), 404)
    refusal(api.http.get("/v1/chat/completions"), 405)
    refusal(api.http.get("/v1/models/"), 404)
    refusal(api.http.post("/v1/chat/completions/", json={}), 404)


def test_long_prompts_do_not_keep_others_waiting(
    api: Api, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many prompts being read at once leave threads for what else needs one."""
    release = threading.Event()
    encode = tokenizer.encode

    def slow(text: str, *, special: bool = True) -> list[int]:
        release.wait(30)
        return encode(text, special=special)

    monkeypatch.setattr(tokenizer, "encode", slow)
    with ThreadPoolExecutor(40) as pool:
        waiting = [pool.submit(api.chat) for _ in range(40)]
        assert api.http.get("/healthz").status_code == 200
        assert not any(one.done() for one in waiting)
        release.set()
        assert {one.result().status_code for one in waiting} == {200}


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_refused_with_both_sizes(start_api: StartApi, tokenizer: Tokenizer, chunked: bool) -> None:
    api = start_api(saying(tokenizer, "Fine."), max_body=1000)
    content = json.dumps({"prompt": "x" * 300_000}).encode()
    body = (content[i : i + 1000] for i in range(0, len(content), 1000)) if chunked else content
    response = api.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert "1000" in str(refusal(response, 413)["message"])
    assert api.complete("short").status_code == 200


def test_with_a_key_only_its_bearers_come_in(start_api: StartApi, tokenizer: Tokenizer) -> None:
    api = start_api(saying(tokenizer, "Fine."), key="s3cret")
    assert refusal(api.chat(), 401)["code"] == "invalid_api_key"
    refusal(api.http.get("/fleet"), 401)
    refusal(api.http.get("/v1/models", headers={"Authorization": "Bearer wrong"}), 401)
    assert api.http.get("/v1/models", headers={"Authorization": "Bearer s3cret"}).status_code == 200
    assert api.http.get("/healthz").status_code == 200


def test_without_a_key_foreign_host_names_stay_out(api: Api) -> None:
    for host in ("evil.example", "evil.example:8114", "[2001:db8::1]", "127.0.0.1.evil.example", "localhost:x", ""):
        assert refusal(api.http.get("/v1/models", headers={"Host": host}), 403)["code"] == "wrong_host"
    for host in ("localhost:8114", "127.0.0.1", "[::1]:8114", "[::1]", "Localhost"):
        assert api.http.get("/v1/models", headers={"Host": host}).status_code == 200


def refusing(error: Exception) -> object:
    def script(request: Request) -> Iterator[RequestEvent | float]:
        yield Failed(request.id, error, Usage(0, 0, 0))

    return script


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "param"),
    [
        (RequestError("the prompt has 9000 tokens and the context 8192", where="prompt"), 400, "messages"),
        (CapacityError("9000 tokens are wanted and there are 100", where="prompt"), 400, "messages"),
        (StageError("stage 2 has ended"), 503, None),
        (ZeroDivisionError("surprise"), 500, None),
    ],
)
def test_what_the_head_refuses(
    start_api: StartApi,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: int,
    param: str | None,
    stream: bool,
) -> None:
    monkeypatch.setattr(service, "_REFUSAL_SECONDS", 60.0)  # however late the head comes to say so
    answer = start_api(refusing(error)).chat(stream=stream)
    told = refusal(answer, status)
    assert told["param"] == param
    assert getattr(error, "what", str(error)) in str(told["message"])
    assert ("retry-after" in answer.headers) == (status == 503)


def test_a_failed_chain(start_api: StartApi, tokenizer: Tokenizer) -> None:
    api = start_api(saying(tokenizer, "Fine."))
    assert api.http.get("/healthz").json() == {"status": "ok"}
    api.head.failure = StageError("the process of stage 2 has ended")
    health = api.http.get("/healthz")
    assert (health.status_code, health.json()["reason"]) == (503, "the process of stage 2 has ended")
    refusal(api.chat(), 503)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_breaks_off_is_an_error(start_api: StartApi, taken: threading.Semaphore, stream: bool) -> None:
    def script(request: Request) -> Iterator[RequestEvent | float]:
        yield TokenEvent(request.id, token_at(request, 0, 504))
        assert taken.acquire(timeout=60)
        yield Failed(request.id, StageError("stage 1 went away"), Usage(1, 0, 1))

    response = start_api(script).chat(stream=stream)
    if not stream:
        refusal(response, 503)
        return
    lines = [line for line in response.text.split("\n\n") if line]
    assert '"content":"The"' in lines[-2]
    assert "stage 1 went away" in json.loads(lines[-1].removeprefix("data: "))["error"]["message"]


def test_a_cancelled_answer_is_not_passed_off_as_a_whole_one(start_api: StartApi) -> None:
    def script(request: Request) -> Iterator[RequestEvent | float]:
        yield TokenEvent(request.id, token_at(request, 0, 504))
        yield 0.1
        yield Finished(request.id, "cancelled", Usage(1, 0, 1))

    refusal(start_api(script).chat(), 503)


def ask_and_leave(api: Api, body: dict[str, object]) -> None:
    """Ask for whole answers, and be gone when they are in the works."""
    content = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    url = api.http.base_url
    with socket.create_connection((url.host, url.port or 80)) as client:
        client.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        assert eventually(lambda: len(api.head.requests) == 2)
        client.setblocking(False)
        with pytest.raises(BlockingIOError):  # nothing is said before the end
            client.recv(1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request(start_api: StartApi, tokenizer: Tokenizer, stream: bool) -> None:
    api = start_api(saying(tokenizer, "word " * 2000, pause=0.01))
    body = {"prompt": "Hello", "stream": stream, "max_tokens": 2000, "n": 2}
    if stream:
        with api.http.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
    else:
        ask_and_leave(api, body)
    assert eventually(lambda: len(api.head.cancelled) >= 2)
    assert sorted(api.head.cancelled) == sorted(request.id for request in api.head.requests)
    assert 'edge_agent_answers_total{reason="cancelled"} 2.0' in api.http.get("/metrics").text


def test_too_many_answers_at_once(start_api: StartApi, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.service.MAX_OPEN", 3)
    api = start_api(saying(tokenizer, "word " * 2000, pause=0.01))
    with api.http.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True, "n": 2, "max_tokens": 999}):
        response = api.complete("x", n=2)
        assert refusal(response, 429)["code"] == "overloaded"
        assert int(response.headers["retry-after"]) > 0
        assert api.complete("x", n=1, max_tokens=1).status_code == 200


def test_a_server_that_ends_tells_its_clients(start_api: StartApi, tokenizer: Tokenizer) -> None:
    api = start_api(saying(tokenizer, "word " * 2000, pause=0.01))
    with api.http.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True, "max_tokens": 2000}) as answer:
        lines = answer.iter_lines()
        next(lines)
        api.server.close()
        last = [line for line in lines if line][-1]
    assert "shutting down" in json.loads(last.removeprefix("data: "))["error"]["message"]


def test_metrics_count_what_answers_come_to(api: Api) -> None:
    api.complete("x", max_tokens=50)
    page = api.http.get("/metrics").text
    assert 'edge_agent_answers_total{reason="stop"} 1.0' in page
    assert 'edge_agent_tokens_total{kind="completion"} 2.0' in page
    assert "edge_agent_first_token_seconds_count 1.0" in page
    assert 'edge_agent_kv_tokens{state="total"} 64.0' in page
