"""The server that a soak is for: begun, looked at when it is at rest, and ended."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from agent.bench.child import Child
from agent.bench.footprint import Footprint
from pipeline.running import RunOptions

_CALLS = 64
"""More calls at once than the event loop ever has threads for blocking work."""
_REST_SECONDS, _LOOK_SECONDS = 60.0, 0.05
_HTTP_SECONDS = 300.0
_ANSWERS = re.compile(r"^edge_agent_answers_total\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rest:
    """The server when nobody asks it anything."""

    held: dict[str, Footprint]
    """By process: the head and each stage."""
    objects: int
    """Python objects of the head."""
    answers: int
    """Answers that have ended since it began."""
    scheduler: dict[str, Any]
    """The scheduler's snapshot."""
    requests: int
    """Requests it still knows."""


class SoakedServer:
    """A server process and its stage processes.

    Raises:
        StageError: it could not be started.
    """

    def __init__(self, package: Path, options: RunOptions) -> None:
        self._child = Child("agent.bench.soak_server", "server")
        said = self._child.begin({"package": str(package), "options": options.model_dump(mode="json")})
        self.url: str = said["url"]
        self.vocabulary: int = said["vocabulary"]
        self.largest_prompt = min(said["kv_tokens"], said["context"] - 1)
        """Tokens: all that the KV cache holds, or all that leaves the model room for an answer."""
        self.pids = {"head": self._child.pid, **{f"stage {i + 1}": pid for i, pid in enumerate(said["stages"])}}
        self._processes = [psutil.Process(pid) for pid in self.pids.values()]

    def make_threads(self) -> None:
        """Have the server make all the threads that it makes when they are first needed."""
        with self._http() as http, ThreadPoolExecutor(_CALLS) as pool:
            for _ in pool.map(lambda _: http.get("/metrics").raise_for_status(), range(_CALLS)):
                pass

    def ask(self, prompt: list[int]) -> str:
        """How the answer to a prompt ends."""
        with self._http() as http:
            answer = http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}).json()
        return str(answer["choices"][0]["finish_reason"]) if "choices" in answer else str(answer)

    def rest(self) -> Rest:
        """Look at it when it is at rest, or after a minute in which it did not come to rest.

        Raises:
            StageError: it has ended.
        """
        with self._http() as http:

            def chain() -> dict[str, Any]:
                found: dict[str, Any] = http.get("/fleet").json()["chains"][0]
                return found

            _wait(lambda: _is_idle(chain()))
            last, page = chain(), http.get("/metrics").text
        port, head = urlsplit(self.url).port, psutil.Process(self.pids["head"])
        _wait(lambda: not any(c.raddr and c.laddr.port == port for c in head.net_connections("tcp")))
        objects = int(self._child.ask({})["objects"])
        return Rest(
            held={name: Footprint.of(pid) for name, pid in self.pids.items()},
            objects=objects,
            answers=round(sum(map(float, _ANSWERS.findall(page)))),
            scheduler=last["scheduler"],
            requests=len(last["requests"]),
        )

    def close(self) -> int:
        """End it; how many of its processes are still there after a while."""
        self._child.close()
        _, left = psutil.wait_procs(self._processes, timeout=_REST_SECONDS)
        return len(left)

    def _http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=_HTTP_SECONDS, trust_env=False)


def _is_idle(chain: dict[str, Any]) -> bool:
    scheduler = chain["scheduler"]
    return not (chain["requests"] or chain["steps"] or scheduler["in_flight"])


def _wait(is_so: Callable[[], bool]) -> None:
    """Until something is so, or long enough to know that it is not going to be."""
    end = time.monotonic() + _REST_SECONDS
    while not is_so() and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
