"""Whose a request is, how urgent, and what it is told when there is no room for it. The head is a fake."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from fake_head import Api, StartApi, saying
from typer.testing import CliRunner

from agent import service as answering
from agent.cli.app import app
from pipeline.messages import Failed, Request, RequestEvent, Usage
from pipeline.tokenizer import Tokenizer
from shards.errors import OverloadedError

LONGEST_HEEDED = 60
"""Seconds of Retry-After that OpenAI's own client waits for at most; it takes more for a mistake."""


@pytest.fixture
def api(start_api: StartApi, tokenizer: Tokenizer) -> Api:
    return start_api(saying(tokenizer, "Fine."))


@pytest.mark.parametrize("path", ["chat", "complete"])
@pytest.mark.parametrize(
    ("fields", "client"),
    [
        ({"user": "ann"}, "ann"),
        ({"safety_identifier": "bob"}, "bob"),
        ({"user": "ann", "safety_identifier": "bob"}, "bob"),
        ({"user": ""}, "127.0.0.1"),
        ({}, "127.0.0.1"),
    ],
)
def test_without_a_key_a_request_is_its_users_or_its_addresss(
    api: Api, path: str, fields: dict[str, object], client: str
) -> None:
    assert getattr(api, path)(**fields).status_code == 200
    assert api.head.requests[0].client == client


def test_users_are_those_of_the_key_they_come_by(start_api: StartApi, tokenizer: Tokenizer) -> None:
    api = start_api(saying(tokenizer, "Fine."), key="s3cret", fleet_key="t0psecret")
    for key, fields, client in (
        ("s3cret", {"user": "ann"}, "api/ann"),
        ("t0psecret", {"user": "ann"}, "owner/ann"),
        ("s3cret", {}, "api"),
        ("t0psecret", {}, "owner"),
    ):
        api.http.headers["Authorization"] = f"Bearer {key}"
        assert api.chat(**fields).status_code == 200
        assert api.head.requests[-1].client == client
    assert not any("secret" in request.client for request in api.head.requests)


TIERS = {
    "auto": ("interactive", "default"),
    "default": ("interactive", "default"),
    "priority": ("interactive", "default"),
    "flex": ("batch", "flex"),
}


@pytest.mark.parametrize("path", ["chat", "complete"])
@pytest.mark.parametrize("tier", TIERS)
def test_the_answer_names_the_tier_that_it_was_served_by(api: Api, path: str, tier: str) -> None:
    service, served = TIERS[tier]
    ask = getattr(api, path)
    assert ask(service_tier=tier).json()["service_tier"] == served
    streamed = ask(service_tier=tier, stream=True, stream_options={"include_usage": True}).text
    chunks = [json.loads(line.removeprefix("data: ")) for line in streamed.split("\n\n") if line.startswith("data: {")]
    assert chunks and {chunk["service_tier"] for chunk in chunks} == {served}
    assert [request.service for request in api.head.requests] == [service, service]


@pytest.mark.parametrize("fields", [{}, {"service_tier": None}])
def test_where_nothing_is_said_of_a_tier_nothing_is_answered(api: Api, fields: dict[str, object]) -> None:
    assert "service_tier" not in api.chat(**fields).json()
    assert "service_tier" not in api.chat(**fields, stream=True).text
    assert api.head.requests[0].service == "interactive"


@pytest.mark.parametrize("tier", ["batch", "scale", "", 5])
def test_a_tier_that_is_none_is_refused_by_name(api: Api, tier: object) -> None:
    for ask in (api.chat, api.complete):
        answer = ask(service_tier=tier)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "service_tier")
        assert "'flex'" in error["message"]
    assert not api.head.requests


@pytest.mark.parametrize(("arguments", "service"), [([], "interactive"), (["--batch"], "batch")])
def test_ask_has_time(api: Api, arguments: list[str], service: str) -> None:
    done = CliRunner().invoke(app, ["ask", "Hello?", "--url", str(api.http.base_url), *arguments])
    assert (done.exit_code, done.stdout.strip()) == (0, "Fine.")
    assert api.head.requests[0].service == service


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("seconds", "told"), [(0.0, 1), (0.2, 1), (1.0, 1), (7.01, 8), (1e9, LONGEST_HEEDED)])
def test_a_request_refused_for_load_is_told_when_to_come_again(
    start_api: StartApi, monkeypatch: pytest.MonkeyPatch, seconds: float, told: int, stream: bool
) -> None:
    def script(request: Request) -> Iterator[RequestEvent | float]:
        error = OverloadedError("7 requests wait and at most 7 may", hint="Later.", retry_seconds=seconds)
        yield Failed(request.id, error, Usage(0, 0, 0))

    monkeypatch.setattr(answering, "_REFUSAL_SECONDS", 60.0)  # however late the head comes to say so
    api = start_api(script)
    answer = api.chat(stream=stream)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (429, "overloaded", "rate_limit_error")
    assert error["message"] == "7 requests wait and at most 7 may. Later."
    assert answer.headers["retry-after"] == str(told)
    page = api.http.get("/metrics").text
    assert 'edge_agent_answers_total{reason="refused"} 1.0' in page
    assert "edge_agent_answer_seconds_count 0.0" in page  # it was none
