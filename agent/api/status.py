"""GET /v1/models, /healthz, /fleet and /metrics: what is there, and how it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from agent import speculation
from agent.api.errors import ApiError
from agent.metrics import Metrics
from pipeline import payload
from shards.edges import begin_of, end_of
from shards.errors import StageError

if TYPE_CHECKING:
    from agent.served import FleetControl, Served
    from pipeline.running import Copy
    from pipeline.snapshots import HeadSnapshot

_ANSWER_SECONDS = 2.0
"""A head that does not say how it is within this time is not well."""
_SILENT = f"the head has not answered for {_ANSWER_SECONDS:g} s"


class Status:
    """The endpoints that only look."""

    def __init__(self, model: Served, metrics: Metrics, fleet: FleetControl | None) -> None:
        self._model, self._metrics, self._fleet = model, metrics, fleet
        self._facts = model.manifest.facts
        self._since = int(time.time())
        self.router = APIRouter()
        for path, answer in (
            ("/v1/models", self.models),
            ("/v1/models/{name:path}", self.one_model),
            ("/healthz", self.health),
            ("/fleet", self.fleet),
            ("/metrics", self.metrics),
        ):
            self.router.get(path, response_model=None)(answer)

    async def models(self) -> dict[str, Any]:
        """All models, which is one."""
        return {"object": "list", "data": [self._listed()]}

    async def one_model(self, name: str) -> dict[str, Any]:
        """The model of a name."""
        if name != self._facts.name:
            message = f"there is no model {name!r} here, only {self._facts.name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return self._listed()

    async def health(self) -> JSONResponse:
        """200 while requests can be served, else 503 and why."""
        copies = self._model.copies
        try:
            failures = [snapshot.failure for snapshot in await self._snapshots(copies)]
            failure = None if None in failures else failures[0] if failures else "no copy of the model runs yet"
        except TimeoutError:
            failure = _SILENT
        if failure is not None:
            return JSONResponse({"status": "failed", "reason": failure}, 503)
        return JSONResponse({"status": "ok"})

    async def fleet(self) -> dict[str, Any]:
        """The chains: their stages, what they hold, where a step's time goes (in microseconds). And the nodes."""
        copies, retiring = self._model.copies, self._model.retiring
        try:
            snapshots = await self._snapshots((*copies, *retiring))
        except TimeoutError:
            raise StageError(_SILENT, where="head", hint="Start the server again.") from None
        chains = [_chain(copy, each) for copy, each in zip((*copies, *retiring), snapshots, strict=True)]
        return {
            "model": {
                "name": self._facts.name,
                "package_id": self._model.manifest.package_id,
                "layers": self._facts.layers,
                "context_length": self._facts.context_length,
                "weights": self._facts.weights,
            },
            "chains": chains[: len(copies)],
            "retiring": chains[len(copies) :],
            **(await asyncio.to_thread(self._fleet.describe) if self._fleet else {}),
        }

    async def metrics(self) -> Response:
        """Prometheus' page."""
        return Response(await asyncio.to_thread(self._metrics.text), media_type=CONTENT_TYPE_LATEST)

    async def _snapshots(self, copies: Sequence[Copy]) -> list[HeadSnapshot]:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return [await asyncio.to_thread(copy.head.snapshot) for copy in copies]

    def _listed(self) -> dict[str, Any]:
        return {
            "id": self._facts.name,
            "object": "model",
            "created": self._since,
            "owned_by": "edge-agent",
            "max_model_len": self._facts.context_length,
        }


def _chain(copy: Copy, snapshot: HeadSnapshot) -> dict[str, Any]:
    chain, times = copy.chain, snapshot.times
    unknown = [None] * len(chain.facts)
    returned = snapshot.scheduler.rows - sum(step.rows for step in snapshot.steps)
    hidden_bytes = payload.size(chain.hidden, returned, chain.limits.hidden_size)
    return {
        "id": chain.limits.epoch,
        "stages": [
            {
                "layers": [begin_of(facts), end_of(facts)],
                "engine": facts.engine,
                "device": facts.device,
                "node": stage.host,
                "pid": stage.pid,
                "kv_tokens": facts.kv_tokens,
                "block": facts.block,
                "properties": facts.properties,
                "microseconds": timing._asdict() if timing else None,
                "use": use,
                "sent_bytes": snapshot.received_bytes if stage is chain.stages[-1] else hidden_bytes,
            }
            for facts, stage, timing, use in zip(
                chain.facts, chain.stages, times.stages or unknown, times.use or unknown, strict=True
            )
        ],
        "microseconds": {"wire": times.wire, "head": times.head, "listeners": times.listeners},
        "traversal_ms": times.traversal / 1e3 if times.steps else None,
        "dropped_frames": snapshot.dropped,
        "failure": snapshot.failure,
        "scheduler": asdict(snapshot.scheduler),
        "speculation": speculation.told(snapshot),
        "requests": [asdict(request) for request in snapshot.requests],
        "steps": [asdict(step) for step in snapshot.steps],
    }
