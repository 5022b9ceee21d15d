from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import psutil
import pytest
from ended import still_alive

from pipeline import wire
from pipeline.chain import Chain
from pipeline.head import Head
from pipeline.messages import Failed, Finished, Open, Request, RequestEvent, Sampling, SequenceRows, TokenEvent
from pipeline.scheduler import Scheduler
from pipeline.scheduler_config import SchedulerConfig
from pipeline.stages import LOST_HINT
from pipeline.wire import Frame
from shards.edges import begin_of, end_of, layers_between
from shards.errors import ConfigurationError, StageError
from shards.loading import load_stage
from shards.runtime import Batch, StageConfig

GREEDY = Sampling(temperature=0.0)
PROMPT = tuple(range(3, 40))
SECONDS = 90.0


def configs(package: Path, edges: Sequence[float] = (0, 2, 4), **changes: Any) -> list[StageConfig]:
    common = {"package": package, "mode": "exact", "threads": 1, "kv_tokens": 512, **changes}
    return [
        StageConfig.model_validate({**common, **layers_between(begin, end)}) for begin, end in itertools.pairwise(edges)
    ]


def start(package: Path, edges: Sequence[float] = (0, 2, 4), **options: Any) -> Chain:
    return Chain.start(configs(package, edges), max_rows=64, max_sequences=8, **options)


def have_ended(pids: Sequence[int]) -> bool:
    processes = []
    for pid in pids:
        try:
            processes.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    return not still_alive(processes, SECONDS)


@pytest.fixture
def chain(tiny_package: Path) -> Iterator[Chain]:
    with start(tiny_package) as chain:
        yield chain
    assert have_ended([stage.pid for stage in chain.stages])


class Driver:
    """A head on a chain, and the events of one long request."""

    def __init__(self, chain: Chain) -> None:
        config = SchedulerConfig(
            kv_tokens=chain.kv_tokens,
            block=chain.block,
            context_length=2048,
            stages=len(chain.facts),
            token_budget=64,
            max_sequences=8,
        )
        self.head = Head(chain, Scheduler(config))
        self.events: SimpleQueue[RequestEvent] = SimpleQueue()
        self.tokens: list[int] = []

    def ask(self, count: int, at_first: Callable[[], None] = lambda: None) -> None:
        """What is done at the first token is done on the head's thread: the answer goes no further meanwhile."""
        to_do = [at_first]

        def hear(event: RequestEvent) -> None:
            while to_do:
                to_do.pop()()
            self.events.put(event)

        self.head.submit(Request("it", PROMPT, GREEDY, count), hear)

    def first_token(self) -> None:
        event = self.events.get(timeout=SECONDS)
        assert isinstance(event, TokenEvent)

    def end(self) -> RequestEvent:
        while isinstance(event := self.events.get(timeout=SECONDS), TokenEvent):
            self.tokens.append(event.token.token)
        return event


def whole_model(package: Path, count: int) -> list[int]:
    """Greedy tokens of the unsplit model, in this process."""
    (config,) = configs(package, (0, 4))
    stage = load_stage(config)
    tokens, past = list(PROMPT), 0
    for _ in range(count):
        rows = SequenceRows(0, past, len(tokens) - past, 1)
        logits = stage.step(Batch((rows,), np.array(tokens[past:], np.int64)))
        past = len(tokens)
        tokens.append(int(logits[0].argmax()))
    stage.close()
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("edges", [(0, 4), (0, 1, 4), (0, 1, 2.5, 4)])
def test_processes_say_what_the_whole_model_says(tiny_package: Path, edges: Sequence[float]) -> None:
    with start(tiny_package, edges) as chain:
        assert [(begin_of(facts), end_of(facts)) for facts in chain.facts] == list(itertools.pairwise(edges))
        assert chain.kv_tokens == 512
        assert chain.block == 32
        driver = Driver(chain)
        driver.ask(60)
        assert isinstance(driver.end(), Finished)
        assert driver.tokens == whole_model(tiny_package, 60)
        snapshot = driver.head.snapshot()
        assert len(snapshot.times.stages) == len(chain.facts)
        assert all(timing.compute > 0 for timing in snapshot.times.stages)
        driver.head.close()
    assert have_ended([stage.pid for stage in chain.stages])


def test_hidden_states_may_travel_as_f16(tiny_package: Path) -> None:
    logits = []
    for hidden in ("f32", "f16"):
        with start(tiny_package, hidden=hidden) as chain:
            opening = Open(0, Sampling(temperature=0.0, logprobs=20))
            frame = Frame(0, (opening,), (SequenceRows(0, 0, len(PROMPT), 1),), np.array(PROMPT, np.int32))
            chain.sender.send(wire.encode(frame, 0, "tokens"))
            (token,) = wire.decode_result(chain.receiver.receive(), chain.limits).tokens
            logits.append(dict(token.top))
    for token, value in logits[0].items():
        assert logits[1][token] == pytest.approx(value, abs=0.02)


def test_loading_is_reported_stage_by_stage(tiny_package: Path) -> None:
    heard: list[tuple[str, float, float]] = []
    with start(tiny_package, progress=lambda *progress: heard.append(progress)):
        pass
    for name in ("stage 1 of 2 (layers 0-1): ", "stage 2 of 2 (layers 2-3): "):
        own = [progress for progress in heard if progress[0].startswith(name)]
        for what in {what for what, _, _ in own}:
            done = [done for doing, done, _ in own if doing == what]
            assert done == sorted(done)
        assert own[-1] == (f"{name}ready", 3, 3)


@pytest.mark.parametrize("edges", [(1, 4), (0.5, 4), (0,)])
def test_stages_that_do_not_begin_are_refused(tiny_package: Path, edges: Sequence[float]) -> None:
    with pytest.raises(ConfigurationError):
        start(tiny_package, edges)


@pytest.mark.parametrize(
    ("end", "begin", "said"), [(2, 3, "layers 0-1 are followed by 3-3"), (2.5, 2, "layers 0-2½ are followed by 2-3")]
)
def test_stages_that_do_not_follow_are_refused(tiny_package: Path, end: float, begin: float, said: str) -> None:
    stages = [*configs(tiny_package, (0, end)), *configs(tiny_package, (begin, 4))]
    with pytest.raises(ConfigurationError, match=said):
        Chain.start(stages, max_rows=64, max_sequences=8)


def children() -> list[int]:
    return [child.pid for child in psutil.Process().children()]


def test_a_stage_that_cannot_load_is_named_and_none_stays(tiny_package: Path) -> None:
    stages = configs(tiny_package)
    stages[1] = stages[1].model_copy(update={"device": "ABACUS"})
    before = children()
    with pytest.raises(StageError, match="ABACUS") as failed:
        Chain.start(stages, max_rows=64, max_sequences=8)
    assert failed.value.where is not None
    assert failed.value.where.startswith("stage 2 of 2 (layers 2-3)")
    assert set(children()) <= set(before)


def test_a_stage_killed_while_loading_is_named_and_none_stays(tiny_package: Path) -> None:
    before = children()
    killed: list[int] = []

    def kill(what: str, done: float, total: float) -> None:
        if not killed:
            killed.append(next(pid for pid in children() if pid not in before))
            psutil.Process(killed[0]).kill()

    with pytest.raises(StageError, match=r"stage 1 of 2 \(layers 0-1\): the process ended \(exit code -?\d+"):
        start(tiny_package, progress=kill)
    assert set(children()) <= set(before)


def test_ctrl_c_while_loading_leaves_nothing(tiny_package: Path) -> None:
    before = children()

    def interrupt(what: str, done: float, total: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(tiny_package, progress=interrupt)
    assert set(children()) <= set(before)


@pytest.mark.parametrize("which", [0, 1])
def test_a_stage_killed_at_work_ends_requests_and_refuses_new_ones(chain: Chain, which: int) -> None:
    driver = Driver(chain)
    driver.ask(400, lambda: psutil.Process(chain.stages[which].pid).kill())
    driver.first_token()
    end = driver.end()
    assert isinstance(end, Failed)
    assert isinstance(end.error, StageError)
    text = str(end.error)
    assert text.startswith(f"stage {which + 1} of 2 ")
    assert "the process ended (exit code " in text
    assert text.endswith(LOST_HINT)
    with pytest.raises(StageError) as refused:
        driver.ask(1)
    assert refused.value is end.error
    heard: list[StageError] = []
    chain.on_failure(heard.append)  # late listeners hear it too
    assert heard == [end.error]
    driver.head.close()


def test_a_stage_that_hangs_is_ended_all_the_same(chain: Chain) -> None:
    driver = Driver(chain)
    driver.ask(400)
    driver.first_token()
    psutil.Process(chain.stages[1].pid).suspend()
    driver.head.close()
    assert isinstance(driver.end(), Finished)
    chain.close()
    assert have_ended([stage.pid for stage in chain.stages])
    chain.close()


def test_two_may_close_it_at_once(chain: Chain) -> None:
    Driver(chain).head.close()
    closers = [threading.Thread(target=chain.close, daemon=True) for _ in range(2)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(SECONDS)
    assert not any(closer.is_alive() for closer in closers)
    assert have_ended([stage.pid for stage in chain.stages])


def test_closing_at_work_is_no_failure(chain: Chain) -> None:
    heard: list[StageError] = []
    chain.on_failure(heard.append)
    driver = Driver(chain)
    driver.ask(400)
    driver.first_token()
    driver.head.close()
    chain.close()
    assert have_ended([stage.pid for stage in chain.stages])
    assert heard == []


_AGENT = """
import sys
from pathlib import Path
from pipeline.chain import Chain
from shards.runtime import StageConfig

def say(*_):
    import psutil
    print(*(child.pid for child in psutil.Process().children()), flush=True)

if __name__ == "__main__":
    configs = [
        StageConfig(package=Path(sys.argv[1]), first_layer=first, end_layer=first + 2, mode="exact", kv_tokens=64)
        for first in (0, 2)
    ]
    chain = Chain.start(configs, max_rows=8, max_sequences=2, progress=say if sys.argv[2] == "loading" else print)
    say()
    sys.stdin.read()
"""


@pytest.mark.parametrize("when", ["loading", "at work"])
def test_stages_end_when_their_agent_is_killed(tiny_package: Path, when: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _AGENT, str(tiny_package), when],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as agent:
        assert agent.stdout is not None
        line = next(line for line in agent.stdout if line.replace(" ", "").strip().isdigit())
        agent.kill()
    pids = [int(pid) for pid in line.split()]
    assert len(pids) == 2
    assert have_ended(pids)
