"""`bench speculation`: two stages with a core each that guess how answers go on, against the same without guessing.

Questions of several domains go through the chat template and are answered greedily to their natural end, or to a number
of tokens. Each is asked by a client of its own and prefix caches are off, so that no answer is looked up in an earlier
one: guesses come from the question, from the answer itself, or from the draft model. Rates are those of decoding,
while all users are being answered; "all domains" is the rate over as many tokens of each. All sides are loaded at the
same time and take turns domain by domain. Hop delays are those of every link between PCs, see
`delays`; the head is on the PC of the first stage, as in a fleet whose head carries layers, or on one of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import harmonic_mean, median
from typing import Any
from uuid import uuid4

from agent import paths
from agent.bench.arrivals import ClosedLoop
from agent.bench.domains import DOMAINS, EDIT, EXTRACTION, STORY
from agent.bench.load import GREEDY, Ask, Load, run_traffic
from agent.bench.prompts import as_chat
from agent.bench.report import Report, Target, at_least, holds
from agent.bench.sides import RATE, Effort, in_turn
from agent.bench.speculation_report import ALL, SpeculationReport
from agent.bench.speculation_sides import NGRAM, NONE, Model, Way, adaptive, opened, synchronous
from pipeline.layout import RunOptions
from pipeline.messages import Request
from pipeline.running import Copy
from shards.edges import layer_words
from shards.progress import Progress
from shards.runtime import Mode


@dataclass(frozen=True, slots=True)
class SpeculationEffort(Effort):
    """How much is measured. Starts and rounds are those of short hops: long ones make all sides alike steady."""

    hops: tuple[float, ...] = (0, 10, 50, 100)
    """Milliseconds."""
    widths: tuple[int, ...] = (2, 4, 8)
    """Fixed numbers of guesses."""
    domains: tuple[str, ...] = tuple(DOMAINS)
    local_head: bool = True
    """Whether the head's PC carries the first stage, so that no hop lies between them."""
    questions: int = 2
    """Of each user, by domain; other ones in each round."""


EFFORT = SpeculationEffort(users=(1, 2, 4, 8), rounds=2, new_tokens=64, starts=2)
QUICK = SpeculationEffort(
    users=(1,), rounds=1, new_tokens=16, hops=(0, 50), widths=(), domains=(EXTRACTION, EDIT, STORY), questions=1
)

WANTED_LOOKED_UP, LOOKED_UP = 1.4, (EXTRACTION, EDIT)
WANTED_LEAST = 0.97
WANTED_FAR, FAR_MS = 2.5, 50
WANTED_ASYNCHRONOUS = 1.15
"""Over links that take time; without any, a stage is idle only while others of the chain work."""

_EXACT_TOKENS = 32
_LEAST_DECODED = 4
"""Tokens of each user, below which a rate says nothing."""
_WARM_UP_TOKENS, _WARM_UP_TOKENS_FAR = 24, 8
"""Where links take long, what is made at first use takes no time."""
_CORES = ((0,), (1,))

Key = tuple[float, int, str]
"""Hop delay in ms, users, domain."""


def run(package: Path, effort: SpeculationEffort, progress: Progress, *, draft: Path | None = None) -> Report:
    """Run it; with `draft`, a draft model's package, also with that model's guesses.

    Raises:
        ConfigurationError: the draft has another tokenizer.
        EdgeAgentError: a side could not be loaded, or failed.
    """
    model = Model.read(package, draft)
    settings: dict[str, Any] = {
        "package": package.name,
        "draft": draft.name if draft else None,
        "drafters": list(model.drafters),
        **effort.settings,
        "head": "on the first stage's PC" if effort.local_head else "on a PC of its own",
        "questions_of_a_user": effort.questions,
        "cores": list(_CORES),
    }
    report = SpeculationReport("speculation", settings)
    facts = model.manifest.facts
    prompts = {domain: as_chat(model.tokenizer, facts, DOMAINS[domain]) for domain in effort.domains}
    ways = model.ways(effort.widths)
    options = _options("fast", prompts, effort)
    for hop_ms in effort.hops:
        starts, rounds = (1, 1) if hop_ms >= FAR_MS else (effort.starts, effort.rounds)
        for start in range(starts):
            with opened(
                model, ways, options, hop_ms, paths.tuning_folder(), progress, local_head=effort.local_head
            ) as sides:
                settings["stages"] = [layer_words(stage) for stage in sides[NONE].chain.facts]
                settings["properties"] = [stage.properties for stage in sides[NONE].chain.facts]
                what = f"speculation: {hop_ms:g} ms a hop, start {start + 1} of {starts}"
                turns = _Turns(report, sides, prompts, frozenset(facts.stop_tokens), effort, hop_ms)
                turns.take(start, rounds, what, progress)
    _sum_up(report, effort, [way.name for way in ways])
    _set_targets(report, effort, model.drafters)
    _exact(report, model, prompts, effort, progress)
    return report


class _Turns:
    """The sides at one hop delay, measured in turn."""

    def __init__(
        self,
        report: Report,
        sides: Mapping[str, Copy],
        prompts: Mapping[str, Sequence[tuple[int, ...]]],
        stop_tokens: frozenset[int],
        effort: SpeculationEffort,
        hop_ms: float,
    ) -> None:
        self._report, self._sides, self._prompts = report, sides, prompts
        self._ask, self._effort, self._hop_ms = stranger(stop_tokens), effort, hop_ms

    def take(self, start: int, rounds: int, what: str, progress: Progress) -> None:
        """Warm up, then measure everything `rounds` times."""
        users = self._effort.users
        for number, name in enumerate(self._sides):
            progress(f"{what}, warm-up", number, len(self._sides))
            self._warm_up(name)
        turns = [
            (round_number, count, domain)
            for round_number in range(rounds)
            for count in users
            for domain in self._prompts
        ]
        for done, (round_number, count, domain) in enumerate(turns):
            progress(what, done, len(turns))
            loads: dict[str, Load] = {}
            runs: list[dict[str, Any]] = []
            for name in in_turn(self._sides, start + done):
                loads[name], figures = self._measure(name, count, domain, start * rounds + round_number)
                turn = {"hop_ms": self._hop_ms, "users": count, "domain": domain, "start": start, "round": round_number}
                runs.append({**turn, "side": name, **figures})
            for run in runs:
                run["equal_answers"] = equal(loads[NONE], loads[run["side"]])
            self._report.runs += runs
        progress(what, len(turns), len(turns))

    def _warm_up(self, name: str) -> None:
        """Kernels are made at first use, for each number of rows: what is looked up well has all of them."""
        domain = next((domain for domain in LOOKED_UP if domain in self._prompts), next(iter(self._prompts)))
        tokens = min(_WARM_UP_TOKENS_FAR if self._hop_ms else _WARM_UP_TOKENS, self._effort.new_tokens)
        for users in {min(self._effort.users), max(self._effort.users)}:
            run_traffic(self._sides[name].head, ClosedLoop(users, users), self._prompts[domain], tokens, self._ask)

    def _measure(self, name: str, users: int, domain: str, turn: int) -> tuple[Load, dict[str, Any]]:
        """Ask a side once, each time from another question on."""
        head, effort, prompts = self._sides[name].head, self._effort, self._prompts[domain]
        first = turn * effort.questions % len(prompts)
        traffic = ClosedLoop(users, users * effort.questions)
        before = head.snapshot().scheduler
        load = run_traffic(head, traffic, (*prompts[first:], *prompts[:first]), effort.new_tokens, self._ask)
        after = head.snapshot().scheduler
        rate = decode_rate(load, users)
        return load, {
            RATE: None if rate is None else round(rate, 2),
            "answers": len(load.answers),
            "tokens": sum(map(len, load.tokens)),
            "steps": after.steps - before.steps,
            "sent_guesses": after.sent_guesses - before.sent_guesses,
            "right_guesses": after.right_guesses - before.right_guesses,
        }


def stranger(stop_tokens: frozenset[int]) -> Ask:
    """An Ask: to the natural end, by a client who has asked nothing before, so that nothing is known of their texts."""

    def ask(prompt: tuple[int, ...], new_tokens: int) -> Request:
        name = uuid4().hex
        return Request(name, prompt, GREEDY, new_tokens, stop_tokens, client=name)

    return ask


def decode_rate(load: Load, users: int) -> float | None:
    """Tokens a second while all users are being answered; None if answers are too short to tell."""
    spoken = Load(tuple(answer for answer in load.answers if len(answer.tokens) > 1))
    return spoken.decode_rate(users, _LEAST_DECODED * users) if spoken.answers else None


def equal(load: Load, other: Load) -> int:
    """How many answers of two loads are the same."""
    return sum(a == b for a, b in zip(load.tokens, other.tokens, strict=True))


# What came of it


def _sum_up(report: Report, effort: SpeculationEffort, sides: Sequence[str]) -> None:
    """A row for each load, domain and side: medians of rates and of ratios within a round, sums of the rest."""
    for hop_ms in effort.hops:
        for users in effort.users:
            for domain in (*effort.domains, ALL):
                for side in sides:
                    key = hop_ms, users, domain
                    rates = [rate for rate in _rates(report, key, side).values() if rate is not None]
                    runs = [run for run in _of(report, hop_ms, users, side) if domain in (run["domain"], ALL)]
                    sums = {name: sum(run[name] for run in runs) for name in _SUMMED}
                    sent, right = sums["sent_guesses"], sums["right_guesses"]
                    report.results.append(
                        {
                            "hop_ms": hop_ms,
                            "users": users,
                            "domain": domain,
                            "side": side,
                            RATE: round(median(rates), 2) if rates else None,
                            "ratio": _rounded(_ratio(report, key, side, NONE)),
                            "acceptance": round(right / sent, 3) if sent else None,
                            **sums,
                            "wasted_guesses": sent - right,
                        }
                    )


_SUMMED = ("answers", "equal_answers", "tokens", "steps", "sent_guesses", "right_guesses")


def _set_targets(report: Report, effort: SpeculationEffort, drafters: Sequence[str]) -> None:
    """What was promised, as far as it was measured; where no number of users is named, it was promised for one."""

    def want(least: float, key: Key, ours: str, theirs: str, where: str = "") -> None:
        hop_ms, users, _ = key
        what = f"{ours} / {theirs}, tok/s, {users} user{'s' if users > 1 else ''}, {hop_ms:g} ms a hop{where}"
        report.targets.append(_target(what, _ratio(report, key, ours, theirs), least))

    alone = 1 in effort.users
    for domain in LOOKED_UP if alone and 0 in effort.hops else ():
        if domain in effort.domains:
            want(WANTED_LOOKED_UP, (0, 1, domain), adaptive(NGRAM), NONE, f", {domain}")
    for hop_ms in effort.hops:
        for users in effort.users:
            for side in map(adaptive, drafters):
                ratios = {d: _ratio(report, (hop_ms, users, d), side, NONE) or 0.0 for d in effort.domains}
                worst = min(ratios, key=lambda domain: ratios[domain])
                want(WANTED_LEAST, (hop_ms, users, worst), side, NONE, f", the worst domain ({worst})")
    for hop_ms in filter(None, effort.hops if alone else ()):
        key = hop_ms, 1, ALL
        better = max(drafters, key=lambda drafter: _ratio(report, key, adaptive(drafter), NONE) or 0.0)
        if hop_ms >= FAR_MS:
            want(WANTED_FAR, key, adaptive(better), NONE)
        want(WANTED_ASYNCHRONOUS, key, adaptive(better), synchronous(better))


def _target(what: str, got: float | None, least: float) -> Target:
    if got is None:
        return Target(what, f">= {least:g}", "the answers are too short: ask for more --tokens", False)
    return at_least(what, got, least)


def _ratio(report: Report, key: Key, ours: str, theirs: str) -> float | None:
    """The median over the rounds of one side's rate over another's of the same round; None if one has none."""
    our_rates, their_rates = _rates(report, key, ours), _rates(report, key, theirs)
    ratios = [a / b for a, b in ((rate, their_rates[turn]) for turn, rate in our_rates.items()) if a and b]
    return median(ratios) if ratios and len(ratios) == len(our_rates) else None


def _rates(report: Report, key: Key, side: str) -> dict[tuple[int, int], float | None]:
    """Rates by start and round."""
    hop_ms, users, domain = key
    by_turn: dict[tuple[int, int], list[float | None]] = {}
    for run in _of(report, hop_ms, users, side):
        if domain in (run["domain"], ALL):
            by_turn.setdefault((run["start"], run["round"]), []).append(run[RATE])
    return {turn: _together(rates) for turn, rates in by_turn.items()}


def _together(rates: Sequence[float | None]) -> float | None:
    """Of as many tokens of each."""
    known = [rate for rate in rates if rate is not None]
    return harmonic_mean(known) if len(known) == len(rates) else None


def _of(report: Report, hop_ms: float, users: int, side: str) -> Iterable[dict[str, Any]]:
    return (run for run in report.runs if (run["hop_ms"], run["users"], run["side"]) == (hop_ms, users, side))


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 3)


# The same text


def _exact(
    report: Report,
    model: Model,
    prompts: Mapping[str, Sequence[tuple[int, ...]]],
    effort: SpeculationEffort,
    progress: Progress,
) -> None:
    """In exact mode each drafter's side says what is said without guesses: a question of each domain, all at once."""
    questions = [of_domain[0] for of_domain in prompts.values()]
    tokens = min(_EXACT_TOKENS, effort.new_tokens)
    options = _options("exact", prompts, effort, users=len(questions))
    ask = stranger(frozenset(model.manifest.facts.stop_tokens))
    ways = (Way(), *map(Way, model.drafters))
    with opened(model, ways, options, 0, paths.tuning_folder(), progress) as sides:
        loads: dict[str, Load] = {}
        for number, (name, side) in enumerate(sides.items()):
            progress("speculation: exact tokens", number, len(sides))
            traffic = ClosedLoop(len(questions), len(questions))
            loads[name] = run_traffic(side.head, traffic, questions, tokens, ask)
        progress("speculation: exact tokens", len(sides), len(sides))
    guessing = [load for name, load in loads.items() if name != NONE]
    same, all_ = sum(equal(loads[NONE], load) for load in guessing), len(guessing) * len(questions)
    what = f"exact mode: adaptive sides give the tokens of {NONE}"
    report.targets.append(holds(what, same == all_, f"{same} of {all_} answers"))


def _options(
    mode: Mode, prompts: Mapping[str, Sequence[tuple[int, ...]]], effort: SpeculationEffort, users: int = 0
) -> RunOptions:
    users = users or max(effort.users)
    longest = max(len(prompt) for of_domain in prompts.values() for prompt in of_domain) + effort.new_tokens
    return RunOptions(
        stages=len(_CORES),
        mode=mode,
        threads=1,
        cores=_CORES,
        max_sequences=users,
        kv_tokens=(users + 1) * (longest + 64),
        prefix_cache=False,
        cache=paths.tuning_folder(),
    )
