from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from eventually import eventually

from pipeline.messages import Open, Sampling
from pipeline.sampler import Sampler
from pipeline.speculation.draft_model import DraftModel
from pipeline.speculation.draft_run import DraftRun
from pipeline.speculation.drafter import DraftText
from pipeline.tokenizer import Tokenizer
from shards.errors import PackageError
from shards.loading import load_stage
from shards.runtime import Batch, SequenceRows, StageConfig

SECONDS = 300.0
"""Its process has the lowest priority: beside other tests a step may take long."""
SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(temperature=0.7, seed=3, top_p=0.9),
    Sampling(temperature=1.2, seed=4),
    Sampling(temperature=0.7, seed=5, repetition_penalty=1.2, frequency_penalty=0.3, logit_bias={28: -2.0}),
)


def text(key: str, tokens: list[int], sampling: Sampling, guesses: list[int] | None = None) -> DraftText:
    return DraftText(key, "", tokens, guesses or [], sampling)


class Asker:
    """Stands for the head: asks again when it is told to."""

    def __init__(self, draft: DraftModel) -> None:
        self._draft = draft
        self._ready = threading.Semaphore(0)
        draft.on_ready = self._ready.release

    def guesses(self, *texts: DraftText, count: int = 4) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        while True:
            for i, each in enumerate(texts):
                if i not in found and (guesses := self._draft.guess(each, count)) is not None:
                    found[i] = list(guesses)
            if len(found) == len(texts):
                return [found[i] for i in range(len(texts))]
            assert self._ready.acquire(timeout=SECONDS)


def start(package: Path, **options: Any) -> DraftModel:
    wanted: dict[str, Any] = {"kv_tokens": 1024, "max_rows": 64, "max_sequences": 8, "mode": "exact"}
    wanted |= {"patience_ms": float("inf"), "stall_seconds": SECONDS} | options  # the machine may be busy
    return DraftModel.start(package, wanted.pop("vocabulary", 10**6), DraftRun(**wanted))


class WholeModel:
    """The unsplit model, one row at a time, in this process."""

    def __init__(self, package: Path) -> None:
        self._stage = load_stage(StageConfig(package=package, first_layer=0, end_layer=30, mode="exact", kv_tokens=512))
        self.close = self._stage.close

    def answer(self, prompt: list[int], sampling: Sampling, count: int) -> list[int]:
        sampler = Sampler(self._stage.facts.vocabulary)
        sampler.open(Open(0, sampling, tuple(prompt), len(prompt)))
        tokens, past = list(prompt), 0
        for _ in range(count):
            rows = SequenceRows(0, past, len(tokens) - past, 1)
            logits = self._stage.step(Batch((rows,), np.array(tokens[past:], np.int64)))
            past = len(tokens)
            tokens.append(sampler.sample((rows,), logits)[0].token)
        self._stage.free(0)
        return tokens[len(prompt) :]


@pytest.fixture(scope="module")
def whole(smollm2_package: Path) -> Iterator[WholeModel]:
    model = WholeModel(smollm2_package)
    yield model
    model.close()


@pytest.fixture(scope="module")
def draft(smollm2_package: Path) -> Iterator[DraftModel]:
    draft = start(smollm2_package)
    yield draft
    pid = draft.pid
    draft.close()
    assert pid is not None and not psutil.pid_exists(pid)


def test_a_model_guesses_itself_right_every_time(smollm2_package: Path, draft: DraftModel, whole: WholeModel) -> None:
    """Greedy and sampled, side by side, whatever part of its guesses is taken."""
    tokenizer = Tokenizer.load(smollm2_package)
    prompts = [
        tokenizer.encode(f"The {what} is") for what in ("capital of France", "sky", "first of all numbers", "sea")
    ]
    answers = [whole.answer(prompt, sampling, 24) for prompt, sampling in zip(prompts, SAMPLINGS, strict=True)]
    asker, taken = Asker(draft), list(accumulate((1, 4, 2, 3, 5, 1, 4)))
    for done in taken:
        texts = [
            text(f"itself {i}", prompt + answer[:done], sampling)
            for i, (prompt, answer, sampling) in enumerate(zip(prompts, answers, SAMPLINGS, strict=True))
        ]
        assert asker.guesses(*texts) == [answer[done : done + 4] for answer in answers]
    for i in range(len(prompts)):
        draft.end(f"itself {i}", "", prompts[i])
    assert draft.facts.texts == 0
    assert draft.cost_ms(2) > 0


def test_it_leaves_the_processors_to_the_stages(draft: DraftModel) -> None:
    nice = psutil.Process(draft.pid).nice()
    assert nice == (psutil.IDLE_PRIORITY_CLASS if sys.platform == "win32" else 19)


def test_it_takes_up_another_text_than_it_guessed(smollm2_package: Path, draft: DraftModel, whole: WholeModel) -> None:
    sampling = Sampling(temperature=0.8, seed=9)
    prompt = Tokenizer.load(smollm2_package).encode("Once upon a time")
    asker = Asker(draft)
    asker.guesses(text("other", prompt, sampling))
    prompt = [*prompt, 28, 665]
    answer = whole.answer(prompt, sampling, 8)
    assert asker.guesses(text("other", prompt, sampling)) == [answer[:4]]
    assert asker.guesses(text("other", prompt, sampling, answer[:4])) == [answer[4:8]]
    draft.end("other", "", prompt)


def test_a_long_prompt_is_caught_up_with_in_chunks(draft: DraftModel, whole: WholeModel) -> None:
    prompt = [i % 1000 + 100 for i in range(200)]
    greedy = Sampling(temperature=0.0)
    assert draft.guess(text("long", prompt, greedy), 4) == []  # nobody waits for so much
    answer = whole.answer(prompt, greedy, 4)
    asker = Asker(draft)
    guesses: list[int] = []

    def have_come() -> bool:
        guesses[:] = asker.guesses(text("long", prompt, greedy))[0]
        return bool(guesses)

    assert eventually(have_come, SECONDS)
    assert guesses == answer
    draft.end("long", "", prompt)


def test_ids_the_other_model_does_not_know_are_no_guesses(tiny_package: Path) -> None:
    draft = start(tiny_package, vocabulary=0, tune=False)
    try:
        assert Asker(draft).guesses(text("a", [1, 2, 3], Sampling(temperature=0.0))) == [[]]
    finally:
        draft.close()


def end(pid: int | None) -> None:
    """Kill a process."""
    assert pid is not None
    psutil.Process(pid).kill()


def suspend(pid: int | None) -> None:
    """Have a process do nothing."""
    assert pid is not None
    psutil.Process(pid).suspend()


@pytest.mark.parametrize(
    ("harm", "stall_seconds", "said"),
    [(end, SECONDS, "process ended"), (suspend, 1.0, "has not come back for 1 s")],
)
def test_a_draft_that_fails_is_switched_off(
    tiny_package: Path, harm: Callable[[int | None], None], stall_seconds: float, said: str
) -> None:
    """Whoever waits for it is told so."""
    draft = start(tiny_package, tune=False)
    pid = draft.pid
    asker = Asker(draft)
    greedy = Sampling(temperature=0.0)
    assert len(asker.guesses(text("a", [1, 2, 3], greedy))[0]) == 4
    draft._stall_seconds = stall_seconds  # only now: its first steps may take long
    harm(pid)
    tokens = [1, 2, 3]
    while asker.guesses(text("a", tokens, greedy))[0]:
        tokens.append(1)
    while draft.facts.off is None:  # nobody waits any more, but it might come back
        time.sleep(0.02)
    assert said in (draft.facts.off or "")
    assert draft.cost_ms(1) == 0.0
    draft.end("a", "", tokens)
    draft.close()
    assert pid is not None and not psutil.pid_exists(pid)


def test_what_is_no_package_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="not a model package"):
        start(tmp_path)
