"""The shapes of the API's answers, streamed and whole. The head is a fake, so that every token is known."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fake_head import StartApi, saying

from pipeline.messages import Finished, Request, RequestEvent, StageTiming, TokenEvent, Usage
from pipeline.tokenizer import Tokenizer

TEXT = "Paris — the capital 🇫🇷 of France."


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_chat_whole(start_api: StartApi, tokenizer: Tokenizer) -> None:
    api = start_api(saying(tokenizer, TEXT))
    body = api.chat("Where?", temperature=0).json()
    count = len(tokenizer.encode(TEXT, special=False))
    assert body.keys() == {"id", "object", "created", "model", "system_fingerprint", "choices", "usage", "timings"}
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == api.manifest.facts.name
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": TEXT, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    prompt = len(api.head.requests[0].prompt)
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": count,
        "total_tokens": prompt + count,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_chat_streamed(start_api: StartApi, tokenizer: Tokenizer) -> None:
    api = start_api(saying(tokenizer, TEXT))
    chunks = events(api.chat(stream=True, stream_options={"include_usage": True}))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]) == TEXT
    assert all(chunk["choices"][0]["finish_reason"] is None and chunk["usage"] is None for chunk in chunks[:-2])
    assert chunks[-2]["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(tokenizer.encode(TEXT, special=False))


def test_without_include_usage_there_is_none(start_api: StartApi, tokenizer: Tokenizer) -> None:
    chunks = events(start_api(saying(tokenizer, TEXT)).chat(stream=True))
    assert all("usage" not in chunk and len(chunk["choices"]) == 1 for chunk in chunks)


def test_completion_whole_and_streamed(start_api: StartApi, tokenizer: Tokenizer) -> None:
    api = start_api(saying(tokenizer, TEXT))
    body = api.complete(max_tokens=100).json()
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"text": TEXT, "index": 0, "logprobs": None, "finish_reason": "stop"}]
    chunks = events(api.complete(max_tokens=100, stream=True))
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "stop"


def test_a_completion_is_16_tokens_long_unless_told(start_api: StartApi, tokenizer: Tokenizer) -> None:
    body = start_api(saying(tokenizer, "word " * 40)).complete().json()
    assert body["usage"]["completion_tokens"] == 16
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_texts_end_the_answer_and_the_request(start_api: StartApi, tokenizer: Tokenizer, stream: bool) -> None:
    api = start_api(saying(tokenizer, TEXT + " And more." * 50, pause=0.005))
    response = api.chat(stop=["never", "capital"], stream=stream)
    if stream:
        chunks = events(response)
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        finish = chunks[-1]["choices"][0]["finish_reason"]
    else:
        choice = response.json()["choices"][0]
        text, finish = choice["message"]["content"], choice["finish_reason"]
    assert (text, finish) == ("Paris — the ", "stop")
    assert api.head.cancelled == [api.head.requests[0].id]


def test_one_stop_text_may_come_bare(start_api: StartApi, tokenizer: Tokenizer) -> None:
    body = start_api(saying(tokenizer, TEXT)).complete(stop="—", max_tokens=50).json()
    assert body["choices"][0]["text"] == "Paris "
    assert body["choices"][0]["finish_reason"] == "stop"


def test_chat_logprobs(start_api: StartApi, tokenizer: Tokenizer) -> None:
    api = start_api(saying(tokenizer, TEXT))
    logprobs = api.chat(logprobs=True, top_logprobs=3).json()["choices"][0]["logprobs"]
    entries = logprobs["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == TEXT
    assert all(entry["logprob"] == -0.5 for entry in entries)
    assert [len(entry["top_logprobs"]) for entry in entries] == [3] * len(entries)
    assert entries[0]["top_logprobs"][0] == {key: entries[0][key] for key in ("token", "logprob", "bytes")}
    streamed = events(api.chat(logprobs=True, top_logprobs=3, stream=True))
    joined = [entry for chunk in streamed for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert joined == entries


def test_logprobs_of_a_completion(start_api: StartApi, tokenizer: Tokenizer) -> None:
    api = start_api(saying(tokenizer, "Paris is it."))
    logprobs = api.complete(logprobs=2, max_tokens=50).json()["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == "Paris is it."
    assert logprobs["text_offset"] == [0, 5, 8, 11]
    assert logprobs["token_logprobs"] == [-0.5] * 4
    assert all(len(top) == 2 for top in logprobs["top_logprobs"])
    streamed = [chunk["choices"][0]["logprobs"] for chunk in events(api.complete(logprobs=2, stream=True))]
    assert [offset for part in streamed for offset in part["text_offset"]] == logprobs["text_offset"]


def test_several_choices_of_several_prompts(start_api: StartApi, tokenizer: Tokenizer) -> None:
    api = start_api(saying(tokenizer, TEXT))
    body = api.complete(["one", "two two"], n=2, max_tokens=50, seed=7).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in body["choices"]] == [TEXT] * 4
    requests = sorted(api.head.requests, key=lambda request: request.id)
    assert [request.sampling.seed for request in requests] == [7, 8, 7, 8]
    assert requests[0].prompt == requests[1].prompt != requests[2].prompt
    assert body["usage"]["prompt_tokens"] == len(requests[0].prompt) + len(requests[2].prompt)
    assert body["usage"]["completion_tokens"] == 4 * len(tokenizer.encode(TEXT, special=False))
    chunks = events(api.chat(n=3, stream=True))
    texts = ["", "", ""]
    for chunk in chunks:
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == [TEXT] * 3


def test_token_ids_as_prompts(start_api: StartApi, tokenizer: Tokenizer) -> None:
    api = start_api(saying(tokenizer, TEXT))
    assert api.complete([504, 3575]).status_code == 200
    assert api.complete([[504], [3575, 282]]).status_code == 200
    assert sorted(request.prompt for request in api.head.requests) == [(504,), (504, 3575), (3575, 282)]


def test_messages_pass_the_models_template(start_api: StartApi, tokenizer: Tokenizer) -> None:
    api = start_api(saying(tokenizer, TEXT))
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Where "}, {"type": "text", "text": "is it?"}]},
    ]
    assert api.http.post("/v1/chat/completions", json={"messages": messages}).status_code == 200
    prompt = tokenizer.decode(api.head.requests[0].prompt, skip_special=False)
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhere is it?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_sampling_fields_reach_the_head(start_api: StartApi, tokenizer: Tokenizer) -> None:
    api = start_api(saying(tokenizer, TEXT))
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.25,
        "seed": 42,
    }
    assert api.chat(**fields, logit_bias={"100": -100}, user="ann", max_completion_tokens=9).status_code == 200
    request = api.head.requests[0]
    assert {name: getattr(request.sampling, name) for name in fields} == fields
    assert request.sampling.logit_bias == {100: -100.0}
    assert (request.client, request.max_tokens) == ("ann", 9)
    assert request.stop_tokens == frozenset(api.manifest.facts.stop_tokens)


def test_fields_that_are_null_have_their_defaults(start_api: StartApi, tokenizer: Tokenizer) -> None:
    api = start_api(saying(tokenizer, TEXT))
    nulls = dict.fromkeys(("temperature", "top_p", "stop", "n", "stream", "logit_bias", "seed", "tools", "max_tokens"))
    assert api.chat(**nulls).status_code == 200
    assert api.head.requests[0].sampling.temperature == 1.0


@pytest.mark.parametrize("path", ["chat", "complete"])
@pytest.mark.parametrize("stream", [False, True])
def test_timings_of_an_answer(
    start_api: StartApi, tokenizer: Tokenizer, taken: threading.Semaphore, path: str, stream: bool
) -> None:
    def script(request: Request) -> Iterator[RequestEvent | float]:
        for event in saying(tokenizer, TEXT, pause=0.005)(request):
            yield event
            if isinstance(event, TokenEvent):  # else tokens may come in one lot, on a PC that is busy
                assert taken.acquire(timeout=60)

    api = start_api(script, hosts=("127.0.0.1", "127.0.0.1"))
    api.head.log.add_step(time.perf_counter(), 0.0035, (StageTiming(100, 2000, 5), StageTiming(50, 1000, 5, 7)))
    api.head.log.add_turn(1, 40e-6, 10e-6)
    ask = getattr(api, path)
    if stream:
        *chunks, last = events(ask(stream=True, stream_options={"include_usage": True}))
        assert all("timings" not in chunk for chunk in chunks)
    else:
        last = ask().json()
    timings = last["timings"]
    assert timings.keys() == {"first_token_ms", "tokens_per_second", "stages", "wire", "head", "acceptance"}
    assert timings["first_token_ms"] > 4 and 0 < timings["tokens_per_second"] < 200
    assert timings["stages"] == [
        {"node": "stage 1", "compute": 2.0, "wait": 0.1},
        {"node": "stage 2", "compute": 1.0, "wait": 0.05},
    ]
    assert (timings["wire"], timings["head"], timings["acceptance"]) == (0.493, 0.04, None)


def test_timings_before_any_step_is_known(start_api: StartApi) -> None:
    def script(request: Request) -> Iterator[RequestEvent | float]:
        yield Finished(request.id, "stop", Usage(len(request.prompt), 0, 0))

    timings = start_api(script, hosts=("127.0.0.1",)).chat().json()["timings"]
    assert timings.pop("first_token_ms") >= 0
    assert timings == {"tokens_per_second": None, "stages": [], "wire": 0.0, "head": 0.0, "acceptance": None}


def test_models(start_api: StartApi, tokenizer: Tokenizer) -> None:
    api = start_api(saying(tokenizer, TEXT))
    listed = api.http.get("/v1/models").json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert model["id"] == api.manifest.facts.name
    assert api.http.get(f"/v1/models/{model['id']}").json() == model
    assert api.chat(model=model["id"]).status_code == 200
