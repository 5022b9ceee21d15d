"""`python -m agent.bench.hub_stage`: a stage of the hub. It serves one caller, and one call at a time."""

from __future__ import annotations

import gc
import hmac
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import numpy as np

from agent.bench.hub_link import FREE, Link
from shards.errors import EdgeAgentError
from shards.loading import load_stage
from shards.runtime import Batch, SequenceRows, StageConfig, StageRuntime

_NOTHING = np.empty((0, 0), np.float32)


def serve(link: Link, runtime: StageRuntime) -> None:
    """Do calls until the caller hangs up.

    Raises:
        StageError: the stage could not do a call.
    """
    facts = runtime.facts
    while True:
        try:
            operation, sequence, past, count = link.take_call()
        except OSError:
            return
        if operation == FREE:
            runtime.free(sequence)
            link.answer(_NOTHING)
            continue
        if facts.is_first:
            x = link.take_values((count,), np.int64)
        else:
            x = link.take_values((count, facts.hidden_size), np.float32)
        link.answer(runtime.step(Batch((SequenceRows(sequence, past, count, sample=1),), x)))


def main() -> None:
    """Load what the parent says, tell it the port, and serve it; the end of stdin is the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    try:
        runtime = load_stage(StageConfig.model_validate(task["config"]), cache=Path(task["cache"]))
        gc.collect()
        gc.freeze()  # as our own stages do
        with socket.create_server(("127.0.0.1", 0)) as listener:
            print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
            link = Link(listener.accept()[0])
        if hmac.compare_digest(link.take_key(), bytes.fromhex(task["key"])):
            serve(link, runtime)
    except (EdgeAgentError, OSError) as error:
        print(json.dumps({"failed": str(error)}), flush=True)
    os._exit(0)  # the interpreter's own clean-up can hang on engine threads


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
