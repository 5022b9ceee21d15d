"""`python -m pipeline.stage_process`: the child process that holds a stage. Its agent talks to it over its pipes."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
from queue import SimpleQueue
from time import monotonic
from typing import TextIO

import zmq

from pipeline.cancelled import CancelledBranches
from pipeline.control import (
    Bound,
    Cancel,
    Connect,
    Echo,
    Echoing,
    Failed,
    FromStage,
    Measure,
    Measured,
    Progress,
    Ready,
    Record,
    Start,
    Stop,
    ToStage,
    Warned,
    line,
    to_stage,
)
from pipeline.link import Receiver, Sender
from pipeline.run_ahead import LatestTokens
from pipeline.sampler import Sampler
from pipeline.spin_wait import SpinWait
from pipeline.stage_worker import StageWorker
from pipeline.tail_capture import TailCapture
from shards import profile
from shards.draft_vocabulary import token_ids
from shards.errors import EdgeAgentError
from shards.loading import load_stage
from shards.runtime import StageConfig, StageRuntime

_PROGRESS_SECONDS = 0.1
"""Least time between two progress lines of the same work."""


class Channel:
    """The pipe to the agent."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    @classmethod
    def over_stdout(cls) -> Channel:
        """Take standard output for the channel. What libraries print goes to standard error from now on."""
        stream = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        return cls(stream)

    def tell(self, message: FromStage) -> None:
        """Send a message; from any thread. Without an agent the process ends."""
        try:
            with self._lock:
                self._stream.write(line(message))
                self._stream.flush()
        except OSError:
            os._exit(1)


class StageProcess:
    """Loads the layers it is told to, takes its place in the chain, and works until told to stop; or measures."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._inbox: SimpleQueue[ToStage] = SimpleQueue()
        self._stop = threading.Event()
        self._cancelled = CancelledBranches()
        self._told = (0.0, "")
        self._capture = TailCapture()
        self._sampler: Sampler | None = None
        """On the tail."""

    def run(self) -> int:
        """Returns the exit code."""
        threading.Thread(target=self._listen, name="listen", daemon=True).start()
        try:
            match self._inbox.get():
                case Measure(config=config, cache=cache):
                    self._channel.tell(Measured(profile=profile.measure(config, progress=self._progress, cache=cache)))
                case Start(config=config, cache=cache):
                    runtime = load_stage(config, self._progress, cache)
                    if runtime.facts.is_tail:
                        self._sampler = Sampler(runtime.facts.vocabulary, token_ids(config.package))
                        if config.capture:
                            self._capture.attach(runtime)
                    self._channel.tell(Ready(facts=runtime.facts))
                    self._work(runtime, config)
                    runtime.close()
                case other:
                    raise TypeError(f"expected start or measure, got {other.kind}")
        except EdgeAgentError as error:
            self._channel.tell(Failed.of(error))
            return 1
        except Exception as error:
            traceback.print_exc()
            self._channel.tell(Failed.of(error))
            return 1
        return 0

    def _listen(self) -> None:
        """Hear the agent, on a thread of its own. An agent that is gone, or asks to stop early, ends the process."""
        connected = False
        try:
            for text in os.fdopen(0, encoding="utf-8"):
                message = to_stage(text)
                if isinstance(message, Cancel):
                    self._cancelled.add(message.branches)
                elif isinstance(message, Record):
                    self._capture.on = message.on
                elif not isinstance(message, Stop):
                    connected = connected or isinstance(message, Connect)
                    self._inbox.put(message)
                elif connected:
                    self._stop.set()
                else:
                    os._exit(0)
        except ValueError as error:
            self._channel.tell(Failed.of(error))
        os._exit(1)

    def _work(self, runtime: StageRuntime, config: StageConfig) -> None:
        message = self._inbox.get()
        if not isinstance(message, Connect):
            raise TypeError(f"expected a connect message, got {message.kind}")
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        limit, interface = message.limits.part_bytes, message.interface
        receiver = Receiver(context, message.keys, message.welcome, limit, interface)
        echo: Receiver | None = None
        if message.echo_from:
            echo = Receiver(context, message.keys, message.echo_from, limit, interface, receiver.doorman)
        waits = SpinWait(config.device == "CPU" and not config.background)
        worker = StageWorker(
            runtime,
            self._sampler,
            receiver,
            Sender(context, message.keys, message.next),
            index=message.index,
            limits=message.limits,
            sends=message.sends,
            cancelled=self._cancelled,
            latest=LatestTokens(echo, message.limits, waits) if runtime.facts.is_first else None,
            waits=waits,
            warn=lambda text: self._channel.tell(Warned(text=text)),
        )
        worker.capture = self._capture
        threading.Thread(target=self._end_at_stop, args=(context,), name="stop", daemon=True).start()
        self._channel.tell(Bound(port=receiver.port, echo_port=echo.port if echo else None))
        if runtime.facts.is_tail and not runtime.facts.is_first:
            match self._inbox.get():
                case Echo(first=first):
                    worker.echo = Sender(context, message.keys, first)
                    self._channel.tell(Echoing())
                case other:
                    raise TypeError(f"expected an echo message, got {other.kind}")
        gc.collect()
        gc.freeze()  # what is loaded stays: the collector need not walk it again between steps
        worker.run()

    def _end_at_stop(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Terminate the context, which ends both threads of the worker at their next use of a socket."""
        self._stop.wait()
        context.term()

    def _progress(self, what: str, done: float, total: float) -> None:
        now = monotonic()
        if done < total and self._told[1] == what and now - self._told[0] < _PROGRESS_SECONDS:
            return
        self._told = now, what
        self._channel.tell(Progress(what=what, done=done, total=total))


def main() -> None:
    """Run a stage process; ends it without the interpreter's own clean-up, which engine threads can hang."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the agent's to handle; it stops its stages in order
    code = StageProcess(Channel.over_stdout()).run()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
