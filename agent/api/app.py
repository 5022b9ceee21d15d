"""The application: the OpenAI API and the status pages over one running model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI

from agent.api import errors
from agent.api.completions import Completions
from agent.api.guard import MAX_BODY_BYTES, Guard
from agent.api.status import Status
from agent.metrics import Metrics
from agent.service import TextService

if TYPE_CHECKING:
    from pipeline.running import RunningModel


def create_app(model: RunningModel, *, key: str | None = None, max_body: int = MAX_BODY_BYTES) -> FastAPI:
    """The API of a model.

    Args:
        model: What answers; it stays the caller's to close.
        key: The key that requests must carry; None only where the server listens on loopback.
        max_body: Largest body in bytes.
    """
    metrics = Metrics(model.head.snapshot)
    service = TextService(model.head, frozenset(model.manifest.facts.stop_tokens), metrics)
    app = FastAPI(title="edge-agent", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service = service
    app.include_router(Completions(model, service).router)
    app.include_router(Status(model, metrics).router)
    errors.install(app)
    app.add_middleware(Guard, key=key, max_body=max_body)
    return app
