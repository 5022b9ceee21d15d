"""A chain of stages, in processes of this computer or of others, and the head's end of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self, TypeVar

import zmq

from pipeline import stages
from pipeline.control import Bound, Cancel, Connect, Echo, Echoing, FromStage, Progress, Ready, Record, Start, Warned
from pipeline.link import KeyPair, Peer, Receiver, Sender
from pipeline.payload import PayloadKind
from pipeline.stage_child import StageChild
from pipeline.stages import LOOPBACK, Heard, Stage
from pipeline.wire import Limits
from shards.edges import begin_of, end_of, layer_words
from shards.errors import ConfigurationError, StageError
from shards.progress import Progress as Report
from shards.progress import silent
from shards.runtime import RuntimeFacts, StageConfig

_log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer", Bound, Echoing)
_Events = SimpleQueue[tuple[Stage, FromStage | StageError]]

StartStage = Callable[[int, str, Start, Heard], Stage]
"""Begins a stage: its place in the chain, its name, its task, and who hears it."""

_MAX_OPERATIONS = 4096
"""Operations of a step: everything a scheduler can free at once."""

_POLL_SECONDS = 0.2
"""How often a wait looks up, because on Windows a Ctrl-C does not interrupt it."""


def start_here(index: int, name: str, task: Start, heard: Heard) -> Stage:
    """A StartStage: in a process of this computer."""
    return StageChild(name, task, heard)


class Chain:
    """Stages in processes of their own, connected in order, and the head's end of the links.

    Make one with `start`. `limits` are those of the results that come back; `facts` has an entry for each stage.
    """

    def __init__(self, children: Sequence[Stage], events: _Events) -> None:
        self._children, self._events = children, events
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._keys = KeyPair.new()
        self._ends: list[Receiver | Sender] = []
        self._closing = threading.Event()
        self._close_lock = threading.Lock()
        self._lock = threading.Lock()
        self._failure: StageError | None = None
        self._listeners: list[Callable[[StageError], None]] = []
        self.facts: tuple[RuntimeFacts, ...]
        self.hidden: PayloadKind
        """How hidden states travel between stages."""
        self.limits: Limits
        self.receiver: Receiver
        self.sender: Sender

    @classmethod
    def start(
        cls,
        configs: Sequence[StageConfig],
        *,
        max_rows: int,
        max_sequences: int,
        epoch: int = 0,
        hidden: PayloadKind = "f32",
        start_stage: StartStage = start_here,
        interface: str = LOOPBACK,
        head_host: str = LOOPBACK,
        locate: Callable[[Peer], Peer] = lambda peer: peer,
        cache: Path | None = None,
        progress: Report = silent,
    ) -> Self:
        """Start the stages, load them all at once, and connect them.

        Args:
            configs: The stages in order; together all layers of a model.
            max_rows: Most rows of a step.
            max_sequences: Most sequences of a step.
            epoch: Number of the chain's life.
            hidden: How hidden states travel between stages.
            start_stage: Begins a stage where it belongs.
            interface: Where all ends of the chain listen; `*` is every address.
            head_host: By what name the tail knows this computer.
            locate: Puts an address in place of the name of the first stage's computer; raises StageError.
            cache: Folder for what tuning finds.
            progress: Told how loading goes, on the calling thread.

        Raises:
            StageError: a stage could not load; the others have been ended.
            ConfigurationError: the stages' layers do not follow one another.
        """
        _check_order(configs)
        events: _Events = SimpleQueue()
        children: list[Stage] = []
        chain = cls(children, events)
        try:
            for i, config in enumerate(configs):
                name = f"stage {i + 1} of {len(configs)} (layers {layer_words(config)})"
                task = Start(config=config, cache=cache)
                children.append(start_stage(i, name, task, lambda child, heard: events.put((child, heard))))
            chain.facts, chain.hidden = chain._load(progress), hidden
            captures = configs[-1].capture
            peer = chain._connect(epoch, max_rows, max_sequences, hidden, captures, interface, head_host)
            chain.sender = Sender(chain._context, chain._keys, locate(peer))
            chain._ends.append(chain.sender)
        except BaseException:  # Ctrl-C too: no process is left behind
            chain.close()
            raise
        threading.Thread(target=chain._watch, name="chain", daemon=True).start()
        return chain

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def kv_tokens(self) -> int:
        """Tokens the smallest KV cache of the chain holds."""
        return min(facts.kv_tokens for facts in self.facts)

    @property
    def block(self) -> int:
        """Tokens of the largest KV block of the chain."""
        return max(facts.block for facts in self.facts)

    @property
    def sequences(self) -> int | None:
        """Sequences that the chain can hold at once; None: as many as there is room for."""
        return min((facts.sequences for facts in self.facts if facts.sequences is not None), default=None)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in order."""
        return tuple(self._children)

    def on_failure(self, listener: Callable[[StageError], None]) -> None:
        """Call `listener` when a stage ends unasked, from a thread of the chain's; at once if one already has."""
        with self._lock:
            failure = self._failure
            if failure is None:
                self._listeners.append(listener)
        if failure is not None:
            listener(failure)

    def cancel(self, branches: Mapping[int, int]) -> None:
        """Tell the stages that rows of guesses need not be computed any more; the tail knows it before the head does.

        Args:
            branches: Of each sequence the branch that is void, with those before it.
        """
        for stage in self._children[:-1]:
            stage.tell(Cancel(branches=dict(branches)))

    @property
    def captures(self) -> bool:
        """Whether the tail was loaded so that `record` works."""
        return self.limits.captures

    def record(self, on: bool) -> None:
        """Have the tail send hidden states with the tokens, or no more; from any thread."""
        self._children[-1].tell(Record(on=on))

    def close(self) -> None:
        """End the stages. A head on this chain is closed before. Another call waits for the first, and does nothing."""
        with self._close_lock:  # sockets and context do not survive two who close them at once
            if self._context.closed:
                return
            self._closing.set()
            stages.stop(self._children)
            for end in self._ends:
                end.close()
            self._context.term()

    def _load(self, progress: Report) -> tuple[RuntimeFacts, ...]:
        facts: dict[Stage, RuntimeFacts] = {}
        while len(facts) < len(self._children):
            child, heard = self._next()
            match heard:
                case Progress(what=what, done=done, total=total):
                    progress(f"{child.name}: {what}", done, total)
                case Ready(facts=found):
                    facts[child] = found
        return tuple(facts[child] for child in self._children)

    def _connect(
        self,
        epoch: int,
        max_rows: int,
        max_sequences: int,
        hidden: PayloadKind,
        captures: bool,
        interface: str,
        head_host: str,
    ) -> Peer:
        """From the head's own socket backwards, so that each end is there before anyone connects to it.

        Returns where the first stage listens.
        """
        self.limits = Limits(
            epoch=epoch,
            payload="tokens",
            hidden_size=self.facts[0].hidden_size,
            vocabulary=self.facts[-1].vocabulary,
            kv_tokens=self.kv_tokens,
            max_rows=max_rows,
            max_sequences=max_sequences,
            max_operations=_MAX_OPERATIONS,
            captures=captures,
        )
        head = self._keys
        keys = [KeyPair.new() for _ in self._children]
        self.receiver = Receiver(self._context, head, keys[-1].public, self.limits.part_bytes, interface)
        self._ends.append(self.receiver)
        peer = Peer(host=head_host, port=self.receiver.port, public=head.public)
        for i in reversed(range(len(self._children))):
            child, before = self._children[i], keys[i - 1] if i else head
            place = Connect(
                index=i,
                keys=keys[i],
                interface=interface,
                welcome=before.public,
                next=peer,
                echo_from=keys[-1].public if i == 0 and len(keys) > 1 else None,
                limits=self.limits if i == 0 else self.limits.model_copy(update={"payload": hidden}),
                sends=hidden,
            )
            child.tell(place)
            bound = self._expect(child, Bound)
            peer = Peer(host=child.host, port=bound.port, public=keys[i].public)
            if bound.echo_port:
                first = Peer(host=child.host, port=bound.echo_port, public=keys[i].public)
                self._children[-1].tell(Echo(first=first))
                self._expect(self._children[-1], Echoing)
        return peer

    def _expect(self, expected: Stage, kind: type[_Answer]) -> _Answer:
        """Wait for a stage's answer."""
        while True:
            child, heard = self._next()
            if child is expected and isinstance(heard, kind):
                return heard

    def _next(self) -> tuple[Stage, FromStage]:
        """The next message while starting; raises the StageError of a process that has ended."""
        while True:
            try:
                child, heard = self._events.get(timeout=_POLL_SECONDS)
            except Empty:
                continue
            if isinstance(heard, StageError):
                raise heard
            return child, heard

    def _watch(self) -> None:
        """Hear the stages at work until the first of them ends."""
        while True:
            child, heard = self._events.get()
            if isinstance(heard, Warned):
                _log.warning("%s: %s", child.name, heard.text)
            elif isinstance(heard, StageError):
                break
        if self._closing.is_set():
            return
        with self._lock:
            self._failure = heard
            listeners = list(self._listeners)
        for listener in listeners:
            listener(heard)


def _check_order(configs: Sequence[StageConfig]) -> None:
    if not configs or begin_of(configs[0]) != 0:
        raise ConfigurationError("a chain begins with layer 0", where="stages")
    for before, after in pairwise(configs):
        if end_of(before) != begin_of(after):
            raise ConfigurationError(
                f"layers {layer_words(before)} are followed by {layer_words(after)}", where="stages"
            )
