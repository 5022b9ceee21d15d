"""Stages without a model, and chains of them whose workers are threads of this process; the sockets are real."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import zmq
from numpy.typing import NDArray

from pipeline.cancelled import CancelledBranches
from pipeline.link import KeyPair, Peer, Receiver, Sender
from pipeline.messages import Sampling
from pipeline.payload import PayloadKind
from pipeline.sampler import Sampler
from pipeline.spin_wait import SpinWait
from pipeline.stage_worker import StageWorker
from pipeline.wire import Limits
from shards.blocks import BlockTable
from shards.errors import StageError
from shards.runtime import Batch, RuntimeFacts, SequenceRows

VOCABULARY, HIDDEN, BLOCK, KV_TOKENS = 100, 4, 4, 256
GREEDY = Sampling(temperature=0.0)


@dataclass
class FakeStage:
    """A StageRuntime whose model says: the next token is the sum of all tokens so far, modulo the vocabulary.

    Hidden rows are (token, position, layers passed, 1). The tail checks that every layer was passed once, and keeps
    the tokens of each sequence as its KV cache, so that wrong rollbacks, forks and orders give wrong answers.
    """

    first: int
    end: int
    depth: int
    calls: list[Batch] = field(default_factory=list)
    cached: dict[int, list[int]] = field(default_factory=dict)
    blocks: BlockTable = field(default_factory=lambda: BlockTable(KV_TOKENS // BLOCK, BLOCK))
    before_step: Callable[[Batch], None] = lambda batch: None
    prepared: tuple[SequenceRows, ...] = ()
    added_rows: int = 0
    change_ms: float = 0.0
    closed: bool = False

    @property
    def facts(self) -> RuntimeFacts:
        return RuntimeFacts(
            engine="openvino-paged",
            device="CPU",
            first_layer=self.first,
            end_layer=self.end,
            depth=self.depth,
            hidden_size=HIDDEN,
            vocabulary=VOCABULARY,
            block=BLOCK,
            kv_tokens=KV_TOKENS,
            properties={},
        )

    def prepare(self, sequences: tuple[SequenceRows, ...]) -> None:
        self.prepared = sequences

    def step(self, batch: Batch) -> NDArray[np.float32]:
        self.before_step(batch)
        self.calls.append(batch)
        x = self._embedded(batch) if self.facts.is_first else np.array(batch.x, np.float32)
        x[:, 2] += self.end - self.first
        begin = 0
        for rows in batch.sequences:
            tokens = self.cached.setdefault(rows.sequence, [])
            if rows.past > len(tokens):
                raise StageError(f"past is {rows.past}, {len(tokens)} are cached", where=f"sequence {rows.sequence}")
            del tokens[rows.past :]
            own = x[begin : begin + rows.count]
            assert own[:, 1].tolist() == list(range(rows.past, rows.past + rows.count))
            tokens += [int(token) for token in own[:, 0]]
            begin += rows.count
        self.blocks.extend(batch.sequences)  # a CapacityError: more than fits
        return self._logits(batch, x) if self.facts.is_tail else x

    def _embedded(self, batch: Batch) -> NDArray[np.float32]:
        assert batch.x.dtype == np.int64
        x = np.ones((len(batch.x), HIDDEN), np.float32)
        x[:, 0] = batch.x
        x[:, 1] = np.concatenate([np.arange(r.past, r.past + r.count) for r in batch.sequences])
        x[:, 2] = 0
        return x

    def _logits(self, batch: Batch, x: NDArray[np.float32]) -> NDArray[np.float32]:
        assert (x[:, 2] == self.depth).all()
        wanted = []
        for rows in batch.sequences:
            tokens = self.cached[rows.sequence]
            wanted += [sum(tokens[: rows.past + rows.count - i]) for i in reversed(range(rows.sample))]
        logits = np.zeros((len(wanted), VOCABULARY), np.float32)
        logits[np.arange(len(wanted)), np.array(wanted, int) % VOCABULARY] = 10
        return logits

    def fork(self, source: int, target: int, length: int) -> None:
        if source not in self.cached:
            raise StageError("it is unknown", where=f"sequence {source}")
        self.cached[target] = self.cached[source][:length]
        self.blocks.fork(source, target, length)

    def free(self, sequence: int) -> None:
        self.cached.pop(sequence, None)
        self.blocks.free(sequence)

    def close(self) -> None:
        self.closed = True


def answer(prompt: Sequence[int], count: int) -> list[int]:
    """What a chain of fake stages says."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(sum(tokens) % VOCABULARY)
    return tokens[len(prompt) :]


class ThreadChain:
    """A chain whose stages are threads; a Chain for the head."""

    def __init__(self, stages: Sequence[FakeStage], hidden: PayloadKind = "f32") -> None:
        self.stages, self.warnings = stages, list[str]()
        self.limits = Limits(
            epoch=1,
            payload="tokens",
            hidden_size=HIDDEN,
            vocabulary=VOCABULARY,
            kv_tokens=KV_TOKENS,
            max_rows=64,
            max_sequences=16,
            max_operations=64,
        )
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.failures: list[Exception] = []
        self._contexts: list[zmq.Context[zmq.Socket[bytes]]] = []
        self.cancelled = [CancelledBranches() for _ in stages]
        self._threads: list[threading.Thread] = []
        self._listeners: list[Callable[[StageError], None]] = []
        self._forger: Sender | None = None
        head = KeyPair.new()
        keys = [KeyPair.new() for _ in stages]
        self.keys = [head, *keys]
        self.receiver = Receiver(self.context, head, keys[-1].public, 2**20, "127.0.0.1")
        self.receiver.socket.rcvtimeo = 60_000
        peer = Peer(host="127.0.0.1", port=self.receiver.port, public=head.public)
        for i in reversed(range(len(stages))):
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            limits = self.limits.model_copy(update={"payload": hidden if i else "tokens"})
            receiver = Receiver(context, keys[i], self.keys[i].public, limits.part_bytes, "127.0.0.1")
            worker = StageWorker(
                stages[i],
                Sampler(VOCABULARY) if stages[i].facts.is_tail else None,
                receiver,
                Sender(context, keys[i], peer),
                index=i,
                limits=limits,
                sends=hidden,
                cancelled=self.cancelled[i],
                waits=SpinWait(True),
                warn=self.warnings.append,
            )
            peer = Peer(host="127.0.0.1", port=receiver.port, public=keys[i].public)
            thread = threading.Thread(target=self._work, args=(worker,), daemon=True)
            thread.start()
            self._contexts.append(context)
            self._threads.append(thread)
        self.first = peer
        self.sender = Sender(self.context, head, peer)

    def _work(self, worker: StageWorker) -> None:
        try:
            worker.run()
        except Exception as error:
            self.failures.append(error)

    def cancel(self, branches: Mapping[int, int]) -> None:
        for cancelled in self.cancelled:
            cancelled.add(branches)

    def on_failure(self, listener: Callable[[StageError], None]) -> None:
        self._listeners.append(listener)

    def fail(self, error: StageError) -> None:
        for listener in self._listeners:
            listener(error)

    def forge(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send to the head as the tail would, from beside it."""
        if self._forger is None:
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            self._contexts.append(context)
            head = Peer(host="127.0.0.1", port=self.receiver.port, public=self.keys[0].public)
            self._forger = Sender(context, self.keys[-1], head)
        self._forger.send(parts)

    def close(self) -> None:
        if self._forger is not None:
            self._forger.close()
        self.sender.close()
        self.receiver.close()
        self.context.term()
        for context in self._contexts:
            context.term()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


def fake_chain(stages: int, hidden: PayloadKind = "f32", layers: int = 2) -> ThreadChain:
    """A chain of equal fake stages."""
    depth = stages * layers
    return ThreadChain([FakeStage(i * layers, (i + 1) * layers, depth) for i in range(stages)], hidden)
