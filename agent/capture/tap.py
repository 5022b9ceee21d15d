"""Between the API and the head: whatever is asked and answered while somebody records is recorded."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from agent.capture.recording import Listener, Recording
from agent.capture.records import Header
from pipeline.messages import Request

if TYPE_CHECKING:
    from agent.served import Served
    from pipeline.chain import Chain


class CaptureTap:
    """Takes requests as a head does, and hands them on to the model's.

    Args:
        model: Loaded to capture; it stays the caller's to close.
    """

    def __init__(self, model: Served) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._recording: Recording | None = None
        self._told: set[Chain] = set()
        """Chains that have been told to send hidden states."""

    def submit(self, request: Request, listener: Listener) -> None:
        """See Head.submit."""
        recording = self._recording
        if recording is not None:
            listener = recording.listener(request, listener)
        self._model.head.submit(request, listener)

    def cancel(self, request: str) -> None:
        """See Head.cancel."""
        self._model.head.cancel(request)

    def start(self, *, max_bytes: int, seconds: float) -> Recording | None:
        """Begin to record all requests that come from now on; None: somebody records already."""
        manifest, facts = self._model.manifest, self._model.manifest.facts
        header = Header(facts.name, manifest.package_id, facts.vocabulary, facts.hidden_size)
        with self._lock:
            if self._recording is not None and self._recording.over is None:
                return None
            self._recording = recording = Recording(header, max_bytes=max_bytes, seconds=seconds)
        self.tell()
        return recording

    def tell(self) -> None:
        """Have chains that are new send hidden states as well; called again and again while somebody records."""
        chains = {copy.chain for copy in self._model.copies}
        self._told &= chains
        for chain in chains - self._told:
            chain.record(True)
            self._told.add(chain)

    def stop(self, recording: Recording) -> None:
        """End a recording, unless another has begun since it was over."""
        with self._lock:
            if self._recording is not recording:
                return
            self._recording = None
        for chain in self._told:
            chain.record(False)
        self._told.clear()
