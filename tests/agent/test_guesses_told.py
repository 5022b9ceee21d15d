"""What /fleet says of the guesses of a chain."""

from __future__ import annotations

from dataclasses import replace

from fake_head import FakeHead

from agent import speculation
from pipeline.averages import LastSteps, StepLog
from pipeline.messages import StageTiming
from pipeline.snapshots import HeadSnapshot
from pipeline.speculation.drafter import DrafterFacts


def steps_of(seconds: float) -> LastSteps:
    """Steps that took so long on their way round."""
    log = StepLog(1)
    log.add_step(1.0, seconds, (StageTiming(0.0, 1.0, 0.0),))
    return log.last(1.0)


def off(snapshot: HeadSnapshot) -> str | None:
    """Why a drafter is off."""
    told = speculation.told(snapshot)
    assert told is not None
    return told["off"]  # type: ignore[no-any-return]


def test_a_drafter_and_what_became_of_its_guesses() -> None:
    seen = FakeHead(lambda _: iter(())).snapshot()
    assert speculation.told(seen) is None
    told = speculation.told(replace(seen, drafter=DrafterFacts("n-gram", None, 2, 30)))
    assert told is not None
    assert (told["name"], told["off"], told["texts"], told["held_tokens"]) == ("n-gram", None, 2, 30)
    assert (told["sent"], told["right"], told["acceptance"]) == (0, 0, None)
    scheduler = replace(seen.scheduler, sent_guesses=8, right_guesses=6)
    told = speculation.told(replace(seen, scheduler=scheduler, drafter=DrafterFacts("n-gram")))
    assert told is not None and told["acceptance"] == 0.75


def test_one_that_is_slower_than_the_model_says_so() -> None:
    draft = DrafterFacts("small", guess_ms=12.5)
    seen = replace(FakeHead(lambda _: iter(())).snapshot(), drafter=draft)
    assert off(seen) is None  # nothing is known of steps
    assert off(replace(seen, times=steps_of(0.020))) is None
    slow = replace(seen, times=steps_of(0.008))
    assert off(slow) == "too slow to pay: a guess takes 12.5 ms, a step 8.0 ms"
    assert off(replace(slow, drafter=replace(draft, off="it has ended"))) == "it has ended"
