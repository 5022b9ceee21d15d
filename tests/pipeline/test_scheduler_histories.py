"""Random histories by the thousand: nobody starves, nothing leaks, no step is too large, every answer is the right one.

What is checked in each of them is said in `random_histories`.
"""

from __future__ import annotations

import random

import pytest
from random_histories import NEVER, History, Life
from simulated_chain import Answers, Chain, reference, request

from pipeline.admission import BATCH_PATIENCE_SECONDS
from pipeline.messages import Finished, Request
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig

HISTORIES, PARTS = 1600, 8
EXHAUSTIVE = 20
"""Times as many with --exhaustive."""


@pytest.mark.parametrize("part", range(PARTS))
def test_histories(part: int, pytestconfig: pytest.Config) -> None:
    many = HISTORIES * (EXHAUSTIVE if pytestconfig.getoption("--exhaustive") else 1)
    for seed in range(part, many, PARTS):
        _live(History.of(seed), f"seed {seed}")


def test_the_histories_come_to_everything_there_is() -> None:
    """Otherwise the test above would say little."""
    lives = [_live(History.of(seed), f"seed {seed}") for seed in range(150)]
    shots = [life.scheduler.snapshot() for life in lives]
    ends = [
        (end.reason, len(life.answers.of(name)))
        for life in lives
        for name, end in life.answers.ended.items()
        if isinstance(end, Finished)
    ]
    assert {reason for reason, _ in ends} == {"stop", "length", "cancelled"}
    left = [tokens for reason, tokens in ends if reason == "cancelled"]
    assert min(left) == 0 and max(left) > 5
    assert sum(shot.preemptions for shot in shots) > 25
    assert sum(shot.cached_tokens for shot in shots) > 500
    assert sum(shot.evicted_tokens for shot in shots) > 1000


@pytest.mark.parametrize("seed", range(12))
def test_leaving_at_any_moment_of_its_life(seed: int, pytestconfig: pytest.Config) -> None:
    """At every moment of short lives, and of long ones with --exhaustive; else at some thirty of them."""
    history = History.of(seed)
    arrival = history.arrivals[0]
    name = arrival.request.id
    whole = _live(history.with_leaving(name, NEVER), f"seed {seed}").ticks
    stride = 1 if pytestconfig.getoption("--exhaustive") else 1 + (whole - arrival.at) // 30
    ends = []
    for at in range(arrival.at, whole, stride):
        life = _live(history.with_leaving(name, at), f"seed {seed}, {name} leaves at {at}")
        end = life.answers.ended[name]
        ends.append(isinstance(end, Finished) and end.reason == "cancelled")
    assert ends[0] and ends == sorted(ends, reverse=True)


_STEP_SECONDS, _SLOTS, _WAITING, _MOST = 0.05, 4, 6, 12
"""Of the crowd below; `_MOST` tokens are a prompt or an answer of it."""


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("name", "more", "own_seconds"),
    [
        # After so long, what comes later does not go before it.
        ("anybody", {}, 0.0),
        ("one of a low priority", {"client": "a", "priority": -2}, 40.0),
        ("one who had much", {"client": "rich"}, 30.0),
        ("a batch request", {"service": "batch"}, BATCH_PATIENCE_SECONDS),
        ("a long prompt", {"client": "a", "prompt": [7] * 90}, 1.0),
    ],
)
def test_nobody_starves_though_a_crowd_never_ends(
    name: str, more: dict[str, object], own_seconds: float, seed: int
) -> None:
    """There is always somebody who waits, of clients who were never seen before and of others."""
    pick = random.Random(seed)
    config = SchedulerConfig(
        kv_tokens=128,
        block=4,
        context_length=128,
        stages=pick.randint(1, 3),
        max_sequences=_SLOTS,
        runs_ahead=pick.random() < 0.5,
        prefix_cache=pick.random() < 0.5,
        mixed=pick.random() < 0.7,
    )
    line = Scheduler(config)
    chain, answers = Chain.of(line), Answers()
    subject = request("subject", **{"prompt": [7] * 8, "max_tokens": 10, "client": "s", **more})
    crowd = 0
    now = came = 0.0

    def come() -> Request:
        client = f"new {crowd}" if pick.random() < 0.5 else pick.choice("abc")
        prompt = [pick.randrange(97) for _ in range(pick.randint(1, _MOST))]
        return request(f"r{crowd}", prompt, pick.randint(1, _MOST), client=client, priority=pick.choice((0, 0, 2)))

    # Turns of those who waited before it, each of them a prompt and an answer in a slot of `_SLOTS`; then its own rows.
    before = 2 * (_WAITING + _SLOTS) * 2 * _MOST * (config.stages + 1)
    own = (len(subject.prompt) + subject.max_tokens) * (2 * config.stages + 2)
    bound = own_seconds + (before + own) * _STEP_SECONDS
    for number in range(3):
        line.add(request(f"rich{number}", [1], 60, client="rich"), now)
    while "subject" not in answers.ended:
        while line.snapshot().waiting < _WAITING:
            line.add(come(), now)
            crowd += 1
        if crowd > 30 and not came and len(answers.of("rich2")) == 60:
            came = now
            line.add(subject, now)
        while step := line.next_step(now):
            chain.send(step)
        answers.take(line.complete(chain.deliver(), now))
        now += _STEP_SECONDS
        assert not came or now - came < bound, f"{name} has waited for {now - came:g} s"
    assert answers.of("subject") == reference(subject, config.stages)


def _live(history: History, what: str) -> Life:
    try:
        return Life(history).run()
    except Exception as error:
        error.add_note(f"{what}: {history}")
        raise
