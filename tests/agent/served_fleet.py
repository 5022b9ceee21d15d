"""A fleet's head that serves, as its keeper and its users see it: over real HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from unsplit import Whole

from agent import keys
from agent.api import status
from agent.bench.prompts import as_chat
from agent.fleet.bulk.library import Library
from agent.fleet.node.node import Node
from agent.fleet.node.node_settings import NodeSettings
from agent.fleet.trust.identity import NodeIdentity
from agent.fleet.trust.members import code_of
from agent.serving import Serving
from pipeline.link import KeyPair
from pipeline.stages import LOOPBACK
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests

PATIENCE = 120.0
TEXT, TOKENS = "What is the capital of France?", 24
QUESTION = {"messages": [{"role": "user", "content": TEXT}], "temperature": 0, "max_tokens": TOKENS}
LONG = {"prompt": "Once upon a time", "stream": True, "max_tokens": 4000, "logit_bias": {"0": -100, "2": -100}}
"""An answer in whose middle something can happen: no stop token ends it, and being random it can hardly be guessed."""


def unsplit_answer(package: Path) -> str:
    """What the whole graph says to QUESTION."""
    tokenizer, facts = Tokenizer.load(package), manifests.read(package).facts
    (prompt,) = as_chat(tokenizer, facts, [TEXT])
    tokens = Whole(package).generate(prompt, TOKENS)
    end = next((place for place, token in enumerate(tokens) if token in facts.stop_tokens), TOKENS)
    assert end
    return tokenizer.decode(tokens[:end])


def wait_for_heads(patch: pytest.MonkeyPatch) -> None:
    """One that has to wait for a processor is well all the same."""
    patch.setattr(status, "_ANSWER_SECONDS", PATIENCE)


class ServedFleet:
    """Asks with the owner's key."""

    def __init__(self, serving: Serving) -> None:
        headers = {"Authorization": f"Bearer {keys.own_key()[0]}"}
        self.http = httpx.Client(base_url=serving.url, headers=headers, timeout=PATIENCE, trust_env=False)

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """What the head tells there."""
        answer = self.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def join(self, settings: NodeSettings, folder: Path) -> Node:
        """Start a node that keeps its things in a folder, and let it in by its code."""
        told, mine = self.get("/fleet")["fleet"], KeyPair.new()
        node = Node(
            settings,
            NodeIdentity(name=settings.name or "other", keys=mine),
            told["key"],
            (LOOPBACK,),
            told["port"],
            Library(folder / "packages"),
            interface=LOOPBACK,
            cache=folder / "tuning",
        )
        code = code_of(told["key"], mine.public)
        self.wait(lambda told: [pending["code"] for pending in told["pending"]] == [code])
        assert self.http.post("/fleet/approve", json={"code": code}).status_code == 200
        return node

    def wait(self, reached: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The fleet, as soon as it is in a state."""
        end = time.monotonic() + PATIENCE
        while not reached(told := self.get("/fleet")):
            assert time.monotonic() < end, told
            time.sleep(0.05)
        return told

    def ask(self) -> str:
        """The answer to QUESTION."""
        answer = self.http.post("/v1/chat/completions", json=QUESTION)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])
