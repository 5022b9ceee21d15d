"""Hub and spoke: the published way to run a model in stages, re-implemented as a control.

It is what "Pre-Compiled Pipeline Shards" (labscommunity/pipeline-sharded-inference-paper) measures: the coordinator
calls one stage after the other and waits for each, with a lock for each stage that is held over the round trip; a
thread for each stream; one row of one stream at a time, or its whole prompt; hidden states in f32 to the coordinator
and on to the next stage; and the logits of the whole vocabulary back to the coordinator, which picks the token.

Where there was a choice it is the hub's: stages keep the KV cache in the engine ours have, with one copy of the weights
for all streams and no masks on the wire; only a prompt's last row gets logits; and TCP does not wait for more to send.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from agent.bench.child import Child
from agent.bench.hub_link import FREE, KEY_BYTES, RUN, Link, Values
from pipeline.head import Listener
from pipeline.messages import Failed, Finished, FinishReason, Request, Token, TokenEvent, Usage
from pipeline.stage_child import environment
from shards.errors import StageError
from shards.runtime import StageConfig


class Hub:
    """The coordinator: takes requests as a head does, and answers them greedily past any stop token.

    Args:
        stages: The stages in order; together all layers of a model.
        cache: Folder of what tuning has found.
        streams: Answers at a time; further requests wait. The stages' KV caches must hold them all.

    Raises:
        StageError: a stage could not load; the others have been ended.
    """

    def __init__(self, stages: Sequence[StageConfig], cache: Path, streams: int) -> None:
        self._remotes: list[_Remote] = []
        self._streams = ThreadPoolExecutor(streams, thread_name_prefix="stream")
        self._numbers = count()
        self._cancelled: set[str] = set()
        try:
            for number, config in enumerate(stages):
                self._remotes.append(_Remote(config, cache, f"hub's stage {number + 1}"))
            for remote in self._remotes:  # they load at the same time
                remote.connect()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """Numbers of the stages' processes."""
        return tuple(remote.pid for remote in self._remotes)

    def submit(self, request: Request, listener: Listener) -> None:
        """Take a request; its events come to `listener`, on the thread of its stream."""
        self._streams.submit(self._run, request, listener)

    def cancel(self, request: str) -> None:
        """End a request early."""
        self._cancelled.add(request)

    def close(self) -> None:
        """End streams and processes."""
        self._streams.shutdown(wait=False, cancel_futures=True)
        for remote in self._remotes:
            remote.close()
        self._streams.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, request: Request, listener: Listener) -> None:
        made = 0
        try:
            for token in self._tokens(request):
                made += 1
                listener(TokenEvent(request.id, token))
        except Exception as error:
            listener(Failed(request.id, error, Usage(len(request.prompt), 0, made)))
            return
        reason: FinishReason = "length" if made == request.max_tokens else "cancelled"
        listener(Finished(request.id, reason, Usage(len(request.prompt), 0, made)))

    def _tokens(self, request: Request) -> Iterator[Token]:
        """The tokens of an answer, each when it is there."""
        sequence, past = next(self._numbers), 0
        x: Values = np.array(request.prompt, np.int64)
        for position in range(len(request.prompt), len(request.prompt) + request.max_tokens):
            if request.id in self._cancelled:
                break
            values: Values = x
            for remote in self._remotes:
                values = remote.run(sequence, past, values)
            token = int(values[-1].argmax())
            past += len(x)
            x = np.array([token], np.int64)
            yield Token(sequence, position, token)
        for remote in self._remotes:
            remote.free(sequence)


class _Remote:
    """A stage, as the coordinator sees it."""

    def __init__(self, config: StageConfig, cache: Path, name: str) -> None:
        self._name, self._key = name, secrets.token_bytes(KEY_BYTES)
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._child = Child("agent.bench.hub_stage", name, environment())
        task = {"config": config.model_dump(mode="json"), "cache": str(cache), "key": self._key.hex()}
        self._child.tell(task)

    @property
    def pid(self) -> int:
        return self._child.pid

    def connect(self) -> None:
        """Wait until it is loaded.

        Raises:
            StageError: it could not load.
        """
        self._link = Link.connect(self._child.hear()["port"], self._key)

    def run(self, sequence: int, past: int, rows: Values) -> NDArray[np.float32]:
        return self._call(RUN, sequence, past, rows)

    def free(self, sequence: int) -> None:
        self._call(FREE, sequence)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._child.close()

    def _call(self, operation: int, sequence: int, past: int = 0, rows: Values | None = None) -> NDArray[np.float32]:
        """A blocking round trip, one at a time.

        Raises:
            StageError: the stage failed, or does not answer.
        """
        assert self._link is not None
        with self._lock:
            try:
                self._link.call(operation, sequence, past, rows)
                return self._link.take_answer()
            except ConnectionError:
                self._child.hear()  # raises what its last words are, or that it has ended
                raise
            except OSError as error:
                raise StageError(f"it does not answer ({error})", where=self._name) from None
