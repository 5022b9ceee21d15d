"""A server over real HTTP: tokenizer and manifest are a real package's, the head is a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fake_head import Api, FakeHead, Script, StartApi, fake_chain

from agent import server
from agent.api.app import create_app
from pipeline.tokenizer import Tokenizer
from shards import manifest


@pytest.fixture(scope="session")
def tokenizer(smollm2_package: Path) -> Tokenizer:
    return Tokenizer.load(smollm2_package)


@pytest.fixture
def start_api(smollm2_package: Path, tokenizer: Tokenizer) -> Iterator[StartApi]:
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
            stack.callback(running.close)
            http = stack.enter_context(httpx.Client(base_url=server.url_of(bound), timeout=30, trust_env=False))
            return Api(http, head, tokenizer, facts, running)

        yield start
