"""What was promised of a fleet, checked in a lab."""

from __future__ import annotations

import time
from pathlib import Path

from agent.bench.prompts import QUESTIONS, chat_prompts
from agent.bench.report import Report, at_most, holds
from agent.bench.rival import Rival
from lab_parts.agents import Agents
from lab_parts.lab import Lab
from lab_parts.namespaces import LabError
from lab_parts.process import Process
from pipeline.tokenizer import Tokenizer
from shards import manifest
from shards.progress import Progress

JOIN_SECONDS, ANSWER_SECONDS = 5.0, 30.0
_PATIENCE_SECONDS = 120.0
"""How long something that should take seconds may take before the check is given up."""
_QUESTION, _NEW_TOKENS = 1, 64


class FleetCheck:
    """A head on `pc0` and a node on each other host, one stage on each, in exact mode and with cold caches."""

    def __init__(self, lab: Lab, package: Path, progress: Progress) -> None:
        self._package, self._progress = package, progress
        self._names = [host.name for host in lab.hosts]
        self._agents = Agents(lab)
        self._nodes: dict[str, Process] = {}
        self.report = Report("lab", {"package": package.name, "nodes": len(lab.hosts) - 1, **lab.settings})

    def run(self, rounds: int) -> Report:
        """They find each other and answer; then, `rounds` times, one of the nodes leaves and joins again."""
        self.report.settings["rounds"] = rounds
        self._progress("the unsplit model's answer", 0, 1)
        wanted = _unsplit_answer(self._package)
        self._progress("the unsplit model's answer", 1, 1)
        try:
            self._join_and_answer(wanted)
            self._leave_and_join(rounds)
            text, _ = self._answer()
            self.report.targets.append(holds("the same text after that", text == wanted, text))
        except LabError as error:
            self.report.targets.append(holds("the check ran to its end", False, str(error)))
        return self.report

    def _join_and_answer(self, wanted: str) -> None:
        self._token = self._agents.token()
        began = time.monotonic()
        stages = str(len(self._names))
        self._head = self._agents.serve(
            self._package, "--mode", "exact", "--no-replicas", "--stages", stages, "--min-nodes", stages
        )
        for name in self._names[1:]:
            self._join(name)
        joined = self._agents.wait_for_nodes(self._names, _PATIENCE_SECONDS, self._processes).at
        text, chain = self._answer()
        answered = time.monotonic()
        self.report.results.append({"s to find each other": joined - began, "s to answer": answered - joined})
        self.report.targets += [
            at_most("head and nodes listed, s after their start, by mDNS alone", joined - began, JOIN_SECONDS),
            at_most("a whole answer with cold caches, s after that", answered - joined, ANSWER_SECONDS),
            holds("one stage on every PC", sorted(chain) == sorted(self._names), " > ".join(chain)),
            holds("the text is the unsplit model's", text == wanted, text),
        ]

    def _leave_and_join(self, rounds: int) -> None:
        """One after the other; meanwhile nobody else may be missing, or be listed who is not there."""
        exact = 0
        for number in range(rounds):
            self._progress("leaving and joining", number, rounds)
            name = self._names[1 + number % len(self._nodes)]
            others = [other for other in self._names if other != name]
            before = len(self._agents.sights())
            began = time.monotonic()
            self._nodes[name].interrupt()
            code = self._nodes[name].wait()
            left = self._agents.wait_for_nodes(others, _PATIENCE_SECONDS, [self._head])
            started = time.monotonic()
            self._join(name)
            joined = self._agents.wait_for_nodes(self._names, _PATIENCE_SECONDS, self._processes)
            lists = [sight.nodes for sight in self._agents.sights()[before:]]
            wrong = [nodes for nodes in lists if nodes not in (sorted(others), sorted(self._names))]
            exact += not wrong
            self.report.runs.append(
                {
                    "node": name,
                    "exit code": code,
                    "s until it had left": left.at - began,
                    "s until it was back": joined.at - started,
                    "wrong lists": wrong,
                }
            )
        self._progress("leaving and joining", rounds, rounds)
        what = f"exactly the right nodes listed, {rounds} times a node left and joined"
        self.report.targets.append(holds(what, exact == rounds, f"{exact} times"))

    def _join(self, name: str) -> None:
        self._nodes[name] = self._agents.join(self._names.index(name), "--token-file", self._token)

    @property
    def _processes(self) -> list[Process]:
        return [self._head, *self._nodes.values()]

    def _answer(self) -> tuple[str, list[str]]:
        """The text, when there is a chain to give it, and the names of the nodes in the chain."""
        what = "one copy of the model runs"
        sight = self._agents.wait_until(what, lambda s: len(s.chains) == 1, _PATIENCE_SECONDS, self._processes)
        return self._agents.ask(QUESTIONS[_QUESTION], _NEW_TOKENS)["text"], sight.chains[0]


def _unsplit_answer(package: Path) -> str:
    """The answer of the whole graph, greedily."""
    tokenizer = Tokenizer.load(package)
    facts = manifest.read(package).facts
    prompt = chat_prompts(tokenizer, facts, _QUESTION + 1)[_QUESTION]
    with Rival("unsplit", package) as rival:
        (tokens,) = rival.run([prompt], _NEW_TOKENS)[1]
    stop = next((n for n, token in enumerate(tokens) if token in facts.stop_tokens), len(tokens))
    return tokenizer.decode(tokens[:stop])
