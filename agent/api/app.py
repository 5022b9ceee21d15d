"""The application: the OpenAI API and the status pages over one running model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI

from agent.api import errors
from agent.api.capture import CaptureApi, without_capture
from agent.api.completions import Completions
from agent.api.fleet import FleetApi, without_fleet
from agent.api.guard import MAX_BODY_BYTES, Guard
from agent.api.prompts import Prompts
from agent.api.requests import Requests
from agent.api.status import Status
from agent.api.timings import Timings
from agent.api.tokenize import Tokenize
from agent.capture.tap import CaptureTap
from agent.metrics import Metrics
from agent.service import TextService

if TYPE_CHECKING:
    from agent.served import FleetControl, Served


def create_app(
    model: Served,
    *,
    key: str | None = None,
    fleet: FleetControl | None = None,
    fleet_key: str | None = None,
    capture_key: str | None = None,
    max_body: int = MAX_BODY_BYTES,
) -> FastAPI:
    """The API of a model.

    Args:
        model: What answers; it stays the caller's to close.
        key: The key that requests must carry; None only where the server listens on loopback.
        fleet: What it runs on, if that is more than this PC.
        fleet_key: The key that looking after the fleet takes.
        capture_key: The key that recording takes; None: the model was not loaded to capture.
        max_body: Largest body in bytes.
    """
    metrics = Metrics(lambda: [copy.head.snapshot() for copy in (*model.copies, *model.retiring)])
    tap = None if capture_key is None else CaptureTap(model)
    service = TextService(tap or model.head, frozenset(model.manifest.facts.stop_tokens), metrics)
    app = FastAPI(title="edge-agent", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service = service
    prompts = Prompts(model)
    app.include_router(Completions(model, service, prompts, Timings(model, fleet)).router)
    app.include_router(Tokenize(prompts, model.manifest.facts.context_length).router)
    app.include_router(Requests(service, fleet_key).router)
    app.include_router(Status(model, metrics, fleet).router)
    if fleet is not None and fleet_key is not None:
        app.include_router(FleetApi(fleet, fleet_key).router)
    else:
        app.include_router(without_fleet())
    endings = [service.close]
    if tap is not None and capture_key is not None:
        capture = CaptureApi(tap, capture_key)
        app.include_router(capture.router)
        endings.append(capture.close)
    else:
        app.include_router(without_capture())
    app.state.end_answers = lambda: [end() for end in endings]
    errors.install(app)
    app.add_middleware(Guard, key=key, owner_key=fleet_key or capture_key, max_body=max_body)
    return app
