"""Conversions in a process of their own: a crash of native code ends only the child, and its memory returns.

The child runs one named job. It reports over its standard output, a JSON object a line; whatever the libraries print
goes to a log that is shown only when something fails.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from shards.errors import EdgeAgentError, ExportError
from shards.progress import Progress

JOBS = {
    "keep": ("exporters.sources.gguf", "convert_kept"),
    "dequantise": ("exporters.sources.gguf", "convert_dequantised"),
    "tokenizer": ("exporters.sources.gguf", "convert_tokenizer"),
    "llamacpp": ("exporters.llamacpp_check", "check_cuts"),
    "huggingface": ("exporters.sources.huggingface", "convert"),
}
"""What a child can do: module and function of each job. It takes keyword arguments of JSON types and a Progress."""

_POLL_SECONDS = 0.2
_LOG_LINES = 12
_QUIET = {
    "CI": "true",  # the OpenVINO tools ask for this before they report their use to their makers
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def run(
    job: str, arguments: Mapping[str, Any], log: Path, progress: Progress, *, where: str, hint: str
) -> dict[str, Any]:
    """Run a job in a child process and return what it returns.

    Args:
        job: One of JOBS.
        arguments: Keyword arguments of the job.
        log: Where the output of the libraries goes.
        progress: Called with the child's reports, and again with the last one while there is nothing new.
        where: What is being converted, for errors.
        hint: What to try when it fails.

    Raises:
        ExportError: the job failed, or its process ended without an answer.
    """
    # -P: a model's folder may be the current one, and holds Python files of strangers
    command = [sys.executable, "-P", "-m", "exporters.sources.child", job, json.dumps(arguments)]
    with log.open("wb") as output:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, env={**os.environ, **_QUIET}
        )
    assert child.stdin is not None and child.stdout is not None
    lines: queue.Queue[bytes] = queue.Queue()
    reader = threading.Thread(target=_pump, args=(child.stdout, lines), daemon=True)
    reader.start()
    try:
        answer = _listen(lines, progress)
        code = child.wait()
    finally:
        child.kill()
        child.wait()
        reader.join()
        child.stdin.close()
        child.stdout.close()
    if "result" in answer:
        return dict(answer["result"])
    if "error" in answer:
        raise ExportError(**answer["error"])
    reason = answer.get("exception") or f"its process ended with code {code}, in native code or for lack of memory"
    raise ExportError(f"the conversion failed: {reason}", where=where, hint=hint + _last_lines(log))


def _listen(lines: queue.Queue[bytes], progress: Progress) -> dict[str, Any]:
    """Pass the child's reports on until it closes its output; returns its answer, empty if it gave none."""
    answer: dict[str, Any] = {}
    what, done, total = "starting the conversion", 0.0, 1.0
    while True:
        try:
            line = lines.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            if done < total:
                progress(what, done, total)
            continue
        message = json.loads(line) if line else {}
        if "result" in message or "error" in message or "exception" in message:
            answer = message
            continue
        following = message.get("progress")
        if done < total and (following is None or following[0] != what):
            progress(what, total, total)
        if following is None:
            return answer
        what, done, total = following
        progress(what, done, total)


def _pump(stream: IO[bytes], lines: queue.Queue[bytes]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(b"")


def _last_lines(log: Path) -> str:
    """The end of the log, to add to a hint."""
    lines = [line for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    return "\nIts last output:\n" + "\n".join(lines[-_LOG_LINES:]) if lines else ""


def _main(job: str, arguments: dict[str, Any]) -> None:
    # libraries print to the standard output, also from native code: it becomes the log, reports get a pipe of their own
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def tell(**message: Any) -> None:
        reports.write(json.dumps(message) + "\n")
        reports.flush()

    def progress(what: str, done: float, total: float) -> None:
        tell(progress=(what, done, total))

    module, name = JOBS[job]
    convert: Callable[..., dict[str, Any]] = getattr(importlib.import_module(module), name)
    try:
        tell(result=convert(**arguments, progress=progress))
    except EdgeAgentError as error:
        tell(error={"what": error.what, "where": error.where, "hint": error.hint})
    except Exception as error:
        tell(exception=f"{type(error).__name__}: {_gist(error)}")
    sys.stderr.flush()
    os._exit(0)  # everything is said; unloading the libraries takes seconds and sometimes crashes


def _gist(error: Exception) -> str:
    """The line of a message that says what happened; OpenVINO puts places in its own sources before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith(("Check ", "Exception from "))), "no message")


def _end_with_parent() -> None:
    """The parent holds the other end of our input: when it is gone, so are we."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
