"""Recording a model at work: two stage processes, speculation, HTTP, the command."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from agent import keys
from agent.capture.capture_file import Captured, CapturedText
from agent.capture.recording import Recording
from agent.capture.tap import CaptureTap
from agent.cli.app import app
from agent.serving import Serving
from pipeline.messages import Open, SequenceRows
from pipeline.running import RunOptions
from pipeline.sampler import Sampler
from shards import manifest as manifests
from shards.errors import RequestError
from shards.graph import cut_head

OPTIONS = RunOptions(stages=2, mode="exact", kv_tokens=2048, draft="ngram", capture=True)
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
QUESTIONS = ("the the the the", "a b c a b c a b c", "once upon a time", "1 2 3 4 1 2 3 4", "er in the er in the")


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("settings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys.paths, "config_folder", lambda: folder)
        yield


@pytest.fixture(scope="module")
def serving(tiny_chat_package: Path, settings: None) -> Iterator[Serving]:
    with Serving(tiny_chat_package, OPTIONS, port=0) as running:
        yield running


def ask(serving: Serving, number: int, **fields: Any) -> dict[str, Any]:
    body = {"prompt": QUESTIONS[number], "max_tokens": 20, "temperature": 0.7 * (number % 2), "seed": number, **fields}
    answer = httpx.post(f"{serving.url}/v1/completions", json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def capture(serving: Serving, *options: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["capture", "--url", serving.url, "--json", *options])
    if isinstance(result.exception, Exception) and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, json.loads(result.stdout)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a recording has begun. To ask the server would be to record, in somebody's way."""
    has_begun, start = threading.Event(), CaptureTap.start

    def start_and_tell(tap: CaptureTap, **amount: Any) -> Recording | None:
        recording = start(tap, **amount)
        has_begun.set()
        return recording

    monkeypatch.setattr(CaptureTap, "start", start_and_tell)
    return has_begun


def head_of(package: Path) -> ov.CompiledModel:
    """Final norm and head matrix."""
    model = ov.Core().read_model(package / manifests.GRAPH, package / manifests.WEIGHTS)
    return ov.Core().compile_model(cut_head(model), "CPU", EXACT)


def sampled(logits: NDArray[np.float32], text: CapturedText) -> list[int]:
    """What a sampler makes of the logits of a text."""
    sampler = Sampler(logits.shape[1])
    sampler.open(Open(1, text.sampling))
    rows = SequenceRows(1, len(text.prompt) - 1, len(logits), len(logits))
    return [token.token for token in sampler.sample([rows], logits)]


def test_what_is_recorded_is_what_was_answered(
    serving: Serving, begun: threading.Event, tiny_chat_package: Path, tmp_path: Path
) -> None:
    path = tmp_path / "x.capture"
    before = ask(serving, 0)  # not recorded, and answered alike
    with ThreadPoolExecutor(6) as threads:
        recording = threads.submit(capture, serving, "-o", str(path), "--megabytes", "0.06")
        assert begun.wait(60)
        answers = list(threads.map(lambda number: ask(serving, number), range(len(QUESTIONS))))
        while not recording.done():  # fill it up
            ask(serving, 0, prompt="something else")
        code, said = recording.result()
    assert answers[0]["choices"] == before["choices"]
    captured = Captured.read(path)
    assert code == 0
    assert (said["rows"], said["dropped"], said["not_finite"], said["why"]) == (captured.rows, 0, 0, "it is full")
    assert captured.header.package_id == manifests.read(tiny_chat_package).package_id
    texts = {text.prompt: text for text in captured.texts}
    tokenizer, head = serving.model.tokenizer, head_of(tiny_chat_package)
    for number, answer in enumerate(answers):
        text = texts[tuple(tokenizer.encode(QUESTIONS[number]))]
        assert text.sampling.seed == number
        assert len(text.tokens) == answer["usage"]["completion_tokens"] > 0
        assert tokenizer.decode(text.tokens.tolist()) == answer["choices"][0]["text"]
        assert sampled(head(text.hidden[None])[0][0], text) == text.tokens.tolist()


def test_one_records_at_a_time_and_leaving_ends_it(serving: Serving, tmp_path: Path) -> None:
    body = {"megabytes": 1, "minutes": 5}
    headers = {"Authorization": f"Bearer {keys.own_key()[0]}"}
    url = f"{serving.url}/capture"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=120, trust_env=False) as response:
        assert response.status_code == 200
        with pytest.raises(RequestError, match="somebody records already"):
            capture(serving, "-o", str(tmp_path / "x"))
    assert not any(tmp_path.iterdir())
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            code, said = capture(serving, "-o", str(tmp_path / "y"), "--minutes", "0.002")
            break
        except RequestError as error:
            assert "somebody records already" in str(error)
    assert (code, said["rows"]) == (0, 0)


def test_a_recording_stays_within_its_bytes(serving: Serving, tmp_path: Path) -> None:
    ended = threading.Event()

    def go_on_asking() -> None:
        while not ended.is_set():
            ask(serving, 2)

    with ThreadPoolExecutor(2) as threads:
        asking = threads.submit(go_on_asking)
        code, said = capture(serving, "-o", str(tmp_path / "x"), "--megabytes", "0.01", "--minutes", "2")
        ended.set()
        asking.result()
    assert (code, said["why"]) == (0, "it is full")
    assert 5000 < (tmp_path / "x").stat().st_size <= 10_000
    assert Captured.read(tmp_path / "x").rows == said["rows"] > 0


def test_it_wants_the_owners_key(serving: Serving) -> None:
    for headers in ({}, {"Authorization": "Bearer guess"}):
        response = httpx.post(
            f"{serving.url}/capture", json={"megabytes": 1, "minutes": 1}, headers=headers, timeout=120, trust_env=False
        )
        assert response.status_code == 401


@pytest.mark.parametrize("body", [{}, {"megabytes": 0, "minutes": 1}, {"megabytes": 1, "minutes": -1}])
def test_an_amount_that_is_none_is_refused(serving: Serving, body: dict[str, Any]) -> None:
    headers = {"Authorization": f"Bearer {keys.own_key()[0]}"}
    response = httpx.post(f"{serving.url}/capture", json=body, headers=headers, timeout=120, trust_env=False)
    assert response.status_code == 400


def test_a_server_that_was_not_started_for_it_says_so(tiny_chat_package: Path, tmp_path: Path) -> None:
    options = RunOptions(mode="exact", kv_tokens=512)
    with (
        Serving(tiny_chat_package, options, port=0) as plain,
        pytest.raises(RequestError, match="start it with --capture"),
    ):
        capture(plain, "-o", str(tmp_path / "x"))
    assert not any(tmp_path.iterdir())


def test_a_server_that_ends_ends_the_recording(tiny_chat_package: Path, begun: threading.Event, tmp_path: Path) -> None:
    options = RunOptions(mode="exact", kv_tokens=512, capture=True)
    with ThreadPoolExecutor(1) as threads:
        with Serving(tiny_chat_package, options, port=0) as short:
            recording = threads.submit(capture, short, "-o", str(tmp_path / "x"), "--minutes", "5")
            assert begun.wait(60)
        code, said = recording.result()
    assert (code, said["why"]) == (0, "it was stopped")
    assert Captured.read(tmp_path / "x").rows == 0
