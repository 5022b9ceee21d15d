"""What tests of the agent share: a model that costs next to nothing, and a server over real HTTP.

Of the server, tokenizer and manifest are a real package's, and the head is a test's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fake_head import Api, FakeHead, Script, StartApi, fake_chain
from tiny_gguf import write_tiny_gguf

from agent import server
from agent.answer_times import AnswerTimes
from agent.api.app import create_app
from exporters.export import export
from pipeline.tokenizer import Tokenizer
from shards import manifest


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of four layers, with a tokenizer and room for 4096 tokens, which are letters."""
    path = tmp_path_factory.mktemp("tiny-gguf") / "tiny.gguf"
    return write_tiny_gguf(path, layers=4, metadata={"llama.context_length": 4096})


@pytest.fixture(scope="session")
def tiny_both_package(tiny_gguf: Path) -> Path:
    """Its package, with every backend that can be had here. Read only."""
    return export(str(tiny_gguf), tiny_gguf.with_suffix(""), weights="keep", verified=False).package


@pytest.fixture(scope="session")
def tokenizer(smollm2_package: Path) -> Tokenizer:
    return Tokenizer.load(smollm2_package)


@pytest.fixture(scope="session")
def closing() -> Iterator[Callable[[server.Server], None]]:
    """Closes servers in the background: each takes a fifth of a second, for which no test waits."""
    with ThreadPoolExecutor() as pool:
        closed: list[Future[None]] = []
        yield lambda ended: closed.append(pool.submit(ended.close))
    for each in closed:
        each.result()


@pytest.fixture
def start_api(
    smollm2_package: Path, tokenizer: Tokenizer, closing: Callable[[server.Server], None]
) -> Iterator[StartApi]:
    """Starts a server whose head plays a script; its chain has stages on `hosts`. Further arguments: create_app's."""
    with ExitStack() as stack:

        def start(script: Script, *, hosts: tuple[str, ...] = (), **options: object) -> Api:
            head = FakeHead(script)
            facts = manifest.read(smollm2_package)
            model = SimpleNamespace(
                head=head,
                tokenizer=tokenizer,
                manifest=facts,
                copies=(SimpleNamespace(head=head, chain=fake_chain(hosts)),),
                retiring=(),
            )
            app = create_app(model, **options)  # type: ignore[arg-type]
            bound = server.bind(port=0)
            running = server.Server(app, bound, app.state.service.close)
            stack.callback(closing, running)
            http = stack.enter_context(httpx.Client(base_url=server.url_of(bound), timeout=90, trust_env=False))
            return Api(http, head, tokenizer, facts, running)

        yield start


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released whenever the server has taken tokens of an answer: what a script says next comes after them for sure."""
    each, add = threading.Semaphore(0), AnswerTimes.add

    def add_and_tell(times: AnswerTimes, now: float, tokens: int) -> bool:
        is_first = add(times, now, tokens)
        if tokens:
            each.release()
        return is_first

    monkeypatch.setattr(AnswerTimes, "add", add_and_tell)
    return each
