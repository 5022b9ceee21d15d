from __future__ import annotations

import threading
from pathlib import Path

import psutil
import pytest

from agent.bench import newcomer, prefill
from agent.bench.newcomer import arrive
from agent.bench.sides import Effort
from pipeline.head import Listener
from pipeline.messages import Failed, Finished, Request, Token, TokenEvent, Usage
from shards.errors import StageError
from shards.progress import silent

NEWCOMER = (7, 7, 7)


class Rounds:
    """Gives each open request a token in each round, but makes a newcomer wait for some of them."""

    def __init__(self, waits: int, fails: bool = False) -> None:
        self._open: dict[str, tuple[Request, Listener, int]] = {}
        self._lock = threading.Lock()
        self._waits, self._fails = waits, fails
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def submit(self, request: Request, listener: Listener) -> None:
        with self._lock:
            self._open[request.id] = request, listener, 0

    def cancel(self, request: str) -> None:
        with self._lock:
            given = self._open.pop(request, None)
        if given is not None:
            given[1](Finished(request, "cancelled", Usage(0, 0, 0)))

    def _run(self) -> None:
        began = False
        while not began or self._open:
            with self._lock:
                began = began or bool(self._open)
                for name, (request, listener, made) in list(self._open.items()):
                    self._open[name] = request, listener, made + 1
                    late = made - self._waits if request.prompt == NEWCOMER else made
                    if late >= 0 and request.prompt == NEWCOMER and self._fails:
                        listener(Failed(name, StageError("it broke"), Usage(3, 0, 0)))
                    elif late >= 0:
                        listener(TokenEvent(name, Token(0, made, 1)))


def test_a_newcomer_is_measured_among_answers_that_are_being_decoded() -> None:
    side = Rounds(waits=5)
    arrived = arrive(side, [(1,), (2,)], NEWCOMER, most_tokens=1 << 20)
    # at least a token of each of the two answers in each of the rounds that the newcomer waits
    assert len(arrived.during) >= 2 * 5
    assert len(arrived.before) >= 2 * (newcomer.SETTLED_TOKENS - 2)
    assert 0 < arrived.first_token < sum(arrived.during)
    side.thread.join(60)
    assert not side.thread.is_alive()  # all has been cancelled


def test_a_newcomer_that_fails_ends_the_others() -> None:
    side = Rounds(waits=1, fails=True)
    with pytest.raises(StageError, match="it broke"):
        arrive(side, [(1,), (2,)], NEWCOMER, most_tokens=1 << 20)
    side.thread.join(60)
    assert not side.thread.is_alive()


def test_both_kinds_of_prompts_are_measured(tiny_both_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "LONG_TOKENS", 96)
    monkeypatch.setattr(prefill, "SHARED_TOKENS", 64)
    monkeypatch.setattr(prefill, "_MOST_TOKENS", 2048)  # of a model that is so quick
    before = set(psutil.Process().children(recursive=True))
    report = prefill.run(tiny_both_package, Effort(users=(2,), rounds=1, new_tokens=8), silent)
    assert set(psutil.Process().children(recursive=True)) <= before
    long = [run for run in report.runs if run["what"] == "96 tokens"]
    assert {run["side"] for run in long} == {prefill.CHUNKS, prefill.WHOLE}
    assert all(run["first_token_ms"] > 0 and run["between_tokens_p99_ms"] > 0 for run in long)
    shared = {run["side"]: run["cached_tokens"] for run in report.runs if run["what"] == "64 shared tokens"}
    assert shared[prefill.COLD] < 32 <= shared[prefill.SECOND]
    assert len(report.targets) == 4 and len(report.results) == 6
    assert report.targets[-1].ok, report.targets[-1]  # the same answers
