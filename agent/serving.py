"""A model and its HTTP server, begun and ended together."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from agent import server
from agent.address import DEFAULT_HOST, DEFAULT_PORT
from agent.api.app import create_app
from pipeline.head import Head
from pipeline.messages import Failed, Finished, Request, RequestEvent, Sampling
from pipeline.running import RunningModel, RunOptions
from shards.errors import ConfigurationError, StageError
from shards.progress import Progress, silent

_WARM_UP_PROMPT, _WARM_UP_TOKENS = 32, 4
_POLL_SECONDS = 0.2
"""How often a wait looks up, because on Windows a Ctrl-C does not interrupt it."""


class Serving:
    """A model package being served; a context manager.

    Args:
        package: The model package.
        options: How to run it.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        key: The API key that requests must carry; needed wherever other PCs can reach the server.
        progress: Told how loading goes.

    Raises:
        ConfigurationError: the port is taken, there is no key where one is needed, or the options make no sense.
        PackageError: the package cannot be read.
        StageError: a stage could not load.
    """

    def __init__(
        self,
        package: Path,
        options: RunOptions,
        *,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        key: str | None = None,
        progress: Progress = silent,
    ) -> None:
        if key is None and not server.is_loopback(host):
            raise ConfigurationError(f"{host} can be reached from other PCs, which takes an API key", where="--host")
        self._failure: StageError | None = None
        with ExitStack() as stack:
            bound = stack.enter_context(server.bind(host, port))
            self.model = RunningModel.open(package, options, progress)
            stack.callback(self.model.close)
            self.model.chain.on_failure(self._fail)
            _warm_up(self.model.head, self.model.manifest.facts.vocabulary, progress)
            app = create_app(self.model, key=key)
            self._server = server.Server(app, bound, app.state.service.close)
            stack.callback(self._server.close)
            self.url = server.url_of(bound)
            self._end = stack.pop_all()

    def wait(self) -> None:
        """Until the server ends, which it does by itself only when it fails.

        Raises:
            StageError: a stage has ended, so that nothing can be answered any more.
        """
        while not self._server.wait(_POLL_SECONDS):
            if self._failure is not None:
                raise self._failure

    def _fail(self, failure: StageError) -> None:
        self._failure = failure

    def close(self) -> None:
        """End the server, then the model."""
        self._end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _warm_up(head: Head, vocabulary: int, progress: Progress) -> None:
    """Answer something nobody asked: kernels are made at first use, which would cost the first user seconds."""
    ended = threading.Event()

    def listen(event: RequestEvent) -> None:
        if isinstance(event, Finished | Failed):
            ended.set()

    progress("warming up", 0, 1)
    prompt = tuple(position % vocabulary for position in range(_WARM_UP_PROMPT))
    head.submit(Request("warm-up", prompt, Sampling(temperature=0.0), _WARM_UP_TOKENS), listen)
    while not ended.wait(_POLL_SECONDS):
        pass
    progress("warming up", 1, 1)
