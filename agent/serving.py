"""A model and its HTTP server, begun and ended together."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from agent import server
from agent.address import DEFAULT_HOST, DEFAULT_PORT
from agent.api.app import create_app
from agent.keys import own_key
from pipeline.running import RunningModel, RunOptions
from shards.errors import ConfigurationError, StageError
from shards.progress import Progress, silent

if TYPE_CHECKING:
    from agent.fleet.head.fleet_model import FleetModel
    from agent.fleet.head.fleet_options import FleetOptions
    from agent.served import Served

_POLL_SECONDS = 0.2
"""How often a wait looks up, because on Windows a Ctrl-C does not interrupt it."""


class Serving:
    """A model package being served; a context manager.

    Args:
        package: The model package.
        options: How to run it.
        fleet: Run it on a fleet: the server is there at once, the model when the fleet has it. None: on this PC
            alone, and loaded when this returns.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        key: The API key that requests must carry; needed wherever other PCs can reach the server.
        progress: Told how loading goes.

    Raises:
        ConfigurationError: a port is taken, there is no key where one is needed, or the options make no sense.
        PackageError: the package cannot be read.
        StageError: a stage could not load.
    """

    def __init__(
        self,
        package: Path,
        options: RunOptions,
        *,
        fleet: FleetOptions | None = None,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        key: str | None = None,
        progress: Progress = silent,
    ) -> None:
        if key is None and not server.is_loopback(host):
            raise ConfigurationError(f"{host} can be reached from other PCs, which takes an API key", where="--host")
        self._failure: StageError | None = None
        self.fleet: FleetModel | None = None
        self.model: Served
        with ExitStack() as stack:
            bound = stack.enter_context(server.bind(host, port))
            self.url = server.url_of(bound)
            if fleet is None:
                model = stack.enter_context(RunningModel.open(package, options, progress))
                model.chain.on_failure(self._fail)
                model.copies[0].warm_up(progress)
                self.model = model
            else:
                api_port = None if server.is_loopback(host) else int(bound.getsockname()[1])
                self.model = self.fleet = self._open_fleet(package, options, fleet, api_port, stack, progress)
            fleet_key = own_key()[0] if self.fleet else None
            capture_key = own_key()[0] if options.capture else None
            app = create_app(self.model, key=key, fleet=self.fleet, fleet_key=fleet_key, capture_key=capture_key)
            self._server = server.Server(app, bound, app.state.end_answers)
            stack.callback(self._server.close)
            self._end = stack.pop_all()

    def _open_fleet(
        self,
        package: Path,
        options: RunOptions,
        fleet: FleetOptions,
        api_port: int | None,
        stack: ExitStack,
        progress: Progress,
    ) -> FleetModel:
        from agent.fleet.head.fleet_head import FleetHead
        from agent.fleet.head.fleet_model import FleetModel

        head = stack.enter_context(FleetHead(package, fleet, url=self.url, api_port=api_port))
        model = FleetModel(package, options, fleet, head, progress)
        return stack.enter_context(model)

    def wait(self, seconds: float | None = None) -> None:
        """Until the server ends, which it does by itself only when it fails; or for some time.

        Raises:
            StageError: a stage has ended, so that nothing can be answered any more.
        """
        left = float("inf") if seconds is None else seconds
        while left > 0 and not self._server.wait(min(_POLL_SECONDS, left)):
            left -= _POLL_SECONDS
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
