"""A draft model: guesses of a small model of the same vocabulary, in a process of its own."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from time import monotonic
from typing import Self

import zmq

from pipeline import wire
from pipeline.bell import Bell
from pipeline.chain import Chain
from pipeline.messages import Sampling
from pipeline.speculation.draft_run import STALL_SECONDS, DraftRun
from pipeline.speculation.draft_session import DraftLimits, DraftSession
from pipeline.speculation.drafter import MODEL, DrafterFacts, DraftText, Want
from pipeline.wire import Frame
from shards import manifest as manifests
from shards.errors import EdgeAgentError, StageError
from shards.progress import Progress, silent

_log = logging.getLogger(__name__)

_WARM_UP_PROMPT, _WARM_UP_TOKENS = 32, 8
_CLOSE_SECONDS = 10.0
_POLL_SECONDS = 0.2
"""How often a wait looks up, because on Windows a Ctrl-C does not interrupt it."""


class DraftModel:
    """Guesses with a package's model, on a chain of one stage that it drives on a thread of its own.

    It draws with the request's own sampling and noise, so that it guesses samples as well as likeliest tokens.
    Whatever fails here ends drafting, with the reason in `facts`, and nothing else. Make one with `start`.

    Args:
        name: Of the model.
        chain: Of one stage; closed with this.
        context_length: Of the model.
        vocabulary: Of the model guessed for: other token ids are no guesses.
        stall_seconds: A step that takes longer is taken for lost.
    """

    def __init__(
        self, name: str, chain: Chain, context_length: int, vocabulary: int, *, stall_seconds: float = STALL_SECONDS
    ) -> None:
        self.on_ready: Callable[[], None] = lambda: None
        limits = chain.limits
        self._name, self._chain, self._vocabulary = name, chain, vocabulary
        self._stall_seconds = stall_seconds
        self._session = DraftSession(
            DraftLimits(
                max_rows=limits.max_rows,
                max_sequences=limits.max_sequences,
                kv_tokens=chain.kv_tokens,
                block=chain.block,
                context_length=context_length,
                vocabulary=limits.vocabulary,
            )
        )
        self._lock = threading.Lock()
        """Held to use the session or the bell."""
        self._bell = Bell()
        self._sent: deque[tuple[int, float]] = deque()
        """Number and time of the steps in flight."""
        self._off: str | None = None
        self._is_closing = self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="draft", daemon=True)
        self._thread.start()
        chain.on_failure(lambda failure: self._switch_off(failure.what))

    @classmethod
    def start(cls, package: Path, vocabulary: int, run: DraftRun, progress: Progress = silent) -> Self:
        """Load a draft package and let it guess something, so that it is warm and knows how long that takes.

        Args:
            package: The draft's package.
            vocabulary: Of the model guessed for.
            run: How it runs.
            progress: Told how loading goes.

        Raises:
            PackageError: the package cannot be read.
            StageError: it could not load.
        """
        facts = manifests.read(package).facts
        name = f"draft {facts.name}"
        chain = run.start_chain(
            package,
            facts.layers,
            lambda what, done, total: progress(f"{name}: {what.partition(': ')[2]}", done, total),
        )
        draft = cls(facts.name, chain, facts.context_length, vocabulary, stall_seconds=run.stall_seconds)
        try:
            draft._warm_up()
            draft._session.least_patience_ms = run.patience_ms
        except BaseException:
            draft.close()
            raise
        return draft

    # What the head asks

    def guess(self, text: DraftText, count: int, want: Want = "all", piece: int = 1) -> Sequence[int] | None:
        """See Drafter."""
        if want == "free":
            return ()
        with self._lock:
            if self._off is not None:
                return ()
            guesses = self._session.guess(text, count, monotonic(), piece if want == "any" else count)
            self._ring()
        return None if guesses is None else list(takewhile(lambda token: token < self._vocabulary, guesses))

    def end(self, key: str, client: str, tokens: Sequence[int]) -> None:
        """See Drafter."""
        with self._lock:
            self._session.end(key)
            self._ring()

    def kind(self, key: str) -> str:
        """See Drafter."""
        return MODEL

    def cost_ms(self, count: int) -> float:
        """See Drafter."""
        with self._lock:
            return 0.0 if self._off is not None else self._session.cost_ms(count)

    @property
    def facts(self) -> DrafterFacts:
        """See Drafter."""
        with self._lock:
            session = self._session
            return DrafterFacts(
                self._name, self._off, session.texts, session.held_tokens, session.guess_ms, self._chain.stages[0].host
            )

    def close(self) -> None:
        """See Drafter: end the thread and the process."""
        with self._lock:
            self._is_closing = True
            self._ring()
        self._thread.join(_CLOSE_SECONDS)
        self._chain.close()

    @property
    def pid(self) -> int | None:
        """Number of its process, if that is one of this computer."""
        return self._chain.stages[0].pid

    def _ring(self) -> None:
        if not self._has_ended:
            self._bell.ring()

    def _switch_off(self, why: str) -> None:
        """Guess no more; nobody is to wait any longer. From any thread."""
        with self._lock:
            if self._off is not None or self._is_closing:
                return
            self._off = why
            self._ring()
        _log.warning("%s guesses no more: %s", self._name, why)
        self.on_ready()

    def _warm_up(self) -> None:
        prompt = [position % self._chain.limits.vocabulary for position in range(_WARM_UP_PROMPT)]
        text = DraftText("warm-up", "", prompt, (), Sampling(temperature=0.0))
        came = threading.Event()
        self.on_ready = came.set
        while self.guess(text, _WARM_UP_TOKENS) is None:
            while not came.wait(_POLL_SECONDS):
                pass
            came.clear()
        self.on_ready = lambda: None
        self.end(text.key, text.client, prompt)
        if self._off is not None:
            raise StageError(self._off, where=f"draft {self._name}", hint="Serve without it: --draft ngram.")

    # From here on everything runs on the draft's own thread.

    def _run(self) -> None:
        try:
            self._work()
        except EdgeAgentError as error:
            self._switch_off(error.what)
        except Exception as error:
            _log.exception("the draft has failed")
            self._switch_off(f"it has failed ({error!r})")
        with self._lock:
            self._has_ended = True
        self._bell.close()
        self._chain.receiver.close()
        self._chain.sender.close()
        if not self._is_closing:
            self._chain.close()  # the memory is the others'

    def _work(self) -> None:
        receiver, sender = self._chain.receiver, self._chain.sender
        poller = zmq.Poller()
        poller.register(receiver.socket, zmq.POLLIN)
        poller.register(self._bell.listener, zmq.POLLIN)
        is_held_up = False
        while not self._is_closing and self._off is None:
            poller.register(sender.socket, zmq.POLLOUT if is_held_up else 0)
            if self._bell.listener in dict(poller.poll(self._patience_ms())):
                with self._lock:
                    self._bell.hush()
            is_ready = self._take_results() or self._is_overdue()
            is_held_up = not self._send_steps()
            if is_ready:
                self.on_ready()

    def _patience_ms(self) -> int | None:
        """How long to wait for a result.

        Raises:
            StageError: that was too long.
        """
        if not self._sent:
            return None
        left = self._sent[0][1] + self._stall_seconds - monotonic()
        if left <= 0:
            raise StageError(f"a step has not come back for {self._stall_seconds:g} s", where=f"draft {self._name}")
        with self._lock:
            patience = self._session.patience_ms(monotonic())
        return int(min(1e3 * left, patience if patience is not None else 1e3 * left)) + 1

    def _is_overdue(self) -> bool:
        """Give up what has been waited for too long; True if there was anything."""
        with self._lock:
            if self._session.patience_ms(monotonic()) != 0.0:
                return False
            self._session.give_up()
            return True

    def _take_results(self) -> bool:
        """Take all results that are there; True if somebody may wait for them."""
        is_ready = False
        while (parts := self._chain.receiver.receive_nowait()) is not None:
            result = wire.decode_result(parts, self._chain.limits)
            if result.error is not None:
                raise StageError(result.error)
            while self._sent and self._sent[0][0] <= result.number:
                self._sent.popleft()
            with self._lock:
                is_ready = self._session.complete(result, monotonic()) or is_ready
        return is_ready

    def _send_steps(self) -> bool:
        """Send what there is to do; False if the stage could take no more."""
        sender = self._chain.sender
        while sender.is_ready:
            with self._lock:
                step = self._session.next_step()
            if step is None:
                return True
            frame = Frame(step.number, step.operations, step.rows, step.tokens, echo=step.echo)
            sender.send(wire.encode(frame, self._chain.limits.epoch, "tokens"))
            self._sent.append((step.number, monotonic()))
        return False
