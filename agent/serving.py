"""A model and its HTTP server, begun and ended together."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Self

from agent import server
from agent.api.app import create_app
from pipeline.running import RunningModel, RunOptions
from shards.progress import Progress, silent


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
        ConfigurationError: the port is taken, or the options make no sense.
        PackageError: the package cannot be read.
        StageError: a stage could not load.
    """

    def __init__(
        self,
        package: Path,
        options: RunOptions,
        *,
        host: str = server.DEFAULT_HOST,
        port: int = server.DEFAULT_PORT,
        key: str | None = None,
        progress: Progress = silent,
    ) -> None:
        with ExitStack() as stack:
            bound = stack.enter_context(server.bind(host, port))
            self.model = RunningModel.open(package, options, progress)
            stack.callback(self.model.close)
            app = create_app(self.model, key=key)
            self._server = server.Server(app, bound, app.state.service.close)
            stack.callback(self._server.close)
            self.url = server.url_of(bound)
            self._end = stack.pop_all()

    def wait(self) -> None:
        """Until the server ends, which it does by itself only when it fails."""
        self._server.wait()

    def close(self) -> None:
        """End the server, then the model."""
        self._end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
