"""What prompts come to in tokens."""

from __future__ import annotations

from typing import Any

import pytest
from fake_head import Api, StartApi, saying

from pipeline.tokenizer import Tokenizer


@pytest.fixture
def api(start_api: StartApi, tokenizer: Tokenizer) -> Api:
    return start_api(saying(tokenizer, "Fine."))


def test_a_conversation_is_counted_as_its_answer_counts_it(api: Api) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Wo ist die Straße? 🇫🇷"}]
    told = api.http.post("/tokenize", json={"messages": messages}).json()
    answer = api.http.post("/v1/chat/completions", json={"messages": messages}).json()
    assert told["count"] == len(told["tokens"]) == answer["usage"]["prompt_tokens"]
    assert tuple(told["tokens"]) == api.head.requests[0].prompt
    assert told["max_model_len"] == api.manifest.facts.context_length


def test_a_text_is_counted_as_its_completion_counts_it(api: Api) -> None:
    told = api.http.post("/tokenize", json={"prompt": "Once upon a time"}).json()
    api.complete("Once upon a time")
    assert tuple(told["tokens"]) == api.head.requests[0].prompt
    assert api.http.post("/tokenize", json={"prompt": ""}).json()["tokens"] == []


def test_more_than_the_context_holds_is_counted_too(api: Api) -> None:
    told = api.http.post("/tokenize", json={"prompt": "word " * 20_000}).json()
    assert told["count"] > told["max_model_len"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, None),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, 400, None),
        ({"prompt": 5}, 400, "prompt"),
        ({"prompt": [1, 2]}, 400, "prompt"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "wizard", "content": "Hi"}]}, 400, "messages.0.role"),
        ({"prompt": "a", "frobnicate": 1}, 400, "frobnicate"),
        ({"prompt": "a", "model": "gpt-4"}, 404, "model"),
    ],
)
def test_a_field_that_is_wrong_is_named(api: Api, body: dict[str, Any], status: int, param: str | None) -> None:
    response = api.http.post("/tokenize", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    if param is None:
        assert "'messages'" in error["message"] and "'prompt'" in error["message"]


def test_it_passes_the_same_guard(start_api: StartApi, tokenizer: Tokenizer) -> None:
    api = start_api(saying(tokenizer, "Fine."), key="s3cret", max_body=1000)
    assert api.http.post("/tokenize", json={"prompt": "a"}).status_code == 401
    headers = {"Authorization": "Bearer s3cret"}
    assert api.http.post("/tokenize", json={"prompt": "a"}, headers=headers).status_code == 200
    assert api.http.post("/tokenize", json={"prompt": "a" * 2000}, headers=headers).status_code == 413
