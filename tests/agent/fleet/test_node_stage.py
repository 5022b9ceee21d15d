"""Stages on nodes: real processes, weights fetched from one another, and the same tokens as the whole model."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from time import monotonic, sleep
from typing import Any

import numpy as np
import psutil
import pytest
from scripted_head import HOST, PATIENCE, ScriptedHead, Statuses, ref, start_node

from agent.fleet.control.messages import Directory, Neighbour, OpenStage, TaskFailed
from agent.fleet.node.node import Node
from pipeline import wire
from pipeline.chain import Chain
from pipeline.control import FromStage, Start, Stop
from pipeline.link import KeyPair
from pipeline.messages import Open, Sampling, SequenceRows
from pipeline.wire import Frame
from shards.errors import StageError
from shards.manifest import WEIGHTS
from shards.runtime import StageConfig
from shards.store import PackageStore

pytestmark = pytest.mark.usefixtures("nothing_stays")

PROMPT = np.arange(3, 40, dtype=np.int32)
COUNT = 5


@pytest.fixture
def pair(head: ScriptedHead, tiny_package: Path, tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """A node that has the model, and one that has nothing."""
    with start_node(head, tmp_path, "full", lends=tiny_package) as full, start_node(head, tmp_path, "bare") as bare:
        head.wait(2)
        yield full, bare


def tokens(chain: Chain) -> list[int]:
    """What a chain says to the prompt, greedily."""
    said: list[int] = []
    rows, past = PROMPT, 0
    for step in range(COUNT):
        operations = () if step else (Open(0, Sampling(temperature=0.0)),)
        frame = Frame(step, operations, (SequenceRows(0, past, len(rows), 1),), rows)
        chain.sender.send(wire.encode(frame, chain.limits.epoch, "tokens"))
        assert chain.receiver.socket.poll(1000 * PATIENCE)
        (token,) = wire.decode_result(chain.receiver.receive(), chain.limits).tokens
        said.append(token.token)
        past, rows = past + len(rows), np.array([token.token], np.int32)
    return said


@pytest.fixture(scope="session")
def expected(tiny_package: Path) -> list[int]:
    """What the whole model says, in one process of this computer."""
    config = StageConfig(package=tiny_package, first_layer=0, end_layer=4, mode="exact", kv_tokens=256, threads=1)
    with Chain.start([config], max_rows=64, max_sequences=8) as chain:
        return tokens(chain)


def stage_processes() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if "pipeline.stage_process" in process.cmdline():
                found.append(process)
    return found


def until(done: Callable[[], object]) -> None:
    """Wait until something is so."""
    ends = monotonic() + PATIENCE
    while not done():
        assert monotonic() < ends
        sleep(0.01)


def failure_of(chain: Chain) -> StageError:
    """Waits for it."""
    failures: SimpleQueue[StageError] = SimpleQueue()
    chain.on_failure(failures.put)
    return failures.get(timeout=PATIENCE)


def copy_on(folder: Path, package: Path, node: str = "bare") -> PackageStore:
    """The part of a package that a node has fetched."""
    return PackageStore(folder / node / PackageStore(package).manifest.package_id)


def test_a_chain_over_two_nodes_says_what_the_whole_model_says(
    head: ScriptedHead, pair: tuple[Node, Node], tiny_package: Path, tmp_path: Path, expected: list[int]
) -> None:
    full, bare = pair
    with head.open_chain(tiny_package, [(full, 0, 2), (bare, 2, 4)], holders=[full]) as chain:
        assert [(facts.first_layer, facts.end_layer) for facts in chain.facts] == [(0, 2), (2, 4)]
        assert tokens(chain) == expected
        assert [stage.state for node in pair for stage in node.status.stages] == ["serving", "serving"]
        store = copy_on(tmp_path, tiny_package)
        assert not store.missing(store.pieces_of_stage(2, 4))
    assert not stage_processes()
    until(lambda: full.status.stages == bare.status.stages == ())


def test_both_stages_on_one_node_and_the_order_turned_round(
    head: ScriptedHead, pair: tuple[Node, Node], tiny_package: Path, expected: list[int]
) -> None:
    full, bare = pair
    stages = [(bare, 0, 1), (bare, 1, 2), (full, 2, 4)]
    with head.open_chain(tiny_package, stages, holders=[bare, full]) as chain:
        assert tokens(chain) == expected


def test_a_killed_process_is_named_with_its_node(
    head: ScriptedHead, pair: tuple[Node, Node], tiny_package: Path
) -> None:
    full, bare = pair
    with head.open_chain(tiny_package, [(full, 0, 2), (bare, 2, 4)], holders=[full]) as chain:
        first, second = sorted(stage_processes(), key=lambda process: process.create_time())
        second.kill()
        error = failure_of(chain)
        assert "the process ended (exit code " in error.what
        assert error.where in {"full: layers 0-1", "bare: layers 2-3"}
        assert first.is_running()


def test_stages_end_with_the_head_and_weights_stay(tiny_package: Path, tmp_path: Path) -> None:
    statuses, head = Statuses(), ScriptedHead()
    with (
        start_node(head, tmp_path, "full", lends=tiny_package) as full,
        start_node(head, tmp_path, "bare", observe=statuses.add) as bare,
    ):
        with head:
            head.wait(2)
            chain = head.open_chain(tiny_package, [(full, 0, 2), (bare, 2, 4)], holders=[full])
        assert "the node is gone" in failure_of(chain).what
        chain.close()
        statuses.wait(lambda status: status.state == "looking" and not status.stages)
        _, alive = psutil.wait_procs(stage_processes(), timeout=PATIENCE)
        assert not alive
        store = copy_on(tmp_path, tiny_package)
        store.verify(store.pieces_of_stage(2, 4))


def test_a_node_that_closes_takes_its_stages_along(
    head: ScriptedHead, pair: tuple[Node, Node], tiny_package: Path
) -> None:
    full, bare = pair
    with head.open_chain(tiny_package, [(full, 0, 2), (bare, 2, 4)], holders=[full]) as chain:
        bare.close()
        assert failure_of(chain).where == "bare"
        assert len(stage_processes()) == 1


@pytest.mark.parametrize("damage", ["a byte", "the file", "its size"])
def test_damage_on_disk_is_found_and_repaired(
    head: ScriptedHead,
    pair: tuple[Node, Node],
    tiny_package: Path,
    tmp_path: Path,
    expected: list[int],
    damage: str,
) -> None:
    full, bare = pair
    stages = [(full, 0, 2), (bare, 2, 4)]
    head.open_chain(tiny_package, stages, holders=[full]).close()
    store = copy_on(tmp_path, tiny_package)
    weights = store.folder / WEIGHTS
    match damage:
        case "a byte":
            at = store.manifest.spans.layers[3][0][0]
            with weights.open("r+b") as file:
                file.seek(at)
                (byte,) = file.read(1)
                file.seek(at)
                file.write(bytes([byte ^ 1]))
        case "the file":
            weights.unlink()
        case "its size":
            weights.write_bytes(b"short")
    heard: list[str] = []
    with head.open_chain(
        tiny_package, stages, holders=[full], progress=lambda what, done, total: heard.append(what)
    ) as chain:
        assert tokens(chain) == expected
    assert any("layers 2-3): fetching" in what for what in heard)
    store.verify(store.pieces_of_stage(2, 4))


def test_what_is_there_is_not_fetched(
    head: ScriptedHead, pair: tuple[Node, Node], tiny_package: Path, expected: list[int]
) -> None:
    full, bare = pair
    heard: list[str] = []
    for _ in range(2):
        heard.clear()
        with head.open_chain(
            tiny_package, [(bare, 0, 4)], holders=[full], progress=lambda what, done, total: heard.append(what)
        ) as chain:
            assert tokens(chain) == expected
    assert heard
    assert not any("fetching" in what for what in heard)


@pytest.mark.parametrize(
    ("changes", "options", "what"),
    [
        ({"device": "ABACUS"}, {}, "no device 'ABACUS' here, only CPU"),
        ({"cores": (4095,)}, {}, "cannot be pinned to processors 4095"),
        ({}, {"head_host": "nowhere"}, "on a node that is not in the fleet"),
    ],
)
def test_a_stage_that_cannot_be_says_why(
    head: ScriptedHead,
    pair: tuple[Node, Node],
    tiny_package: Path,
    changes: dict[str, Any],
    options: dict[str, Any],
    what: str,
) -> None:
    with pytest.raises(StageError, match=what) as failed:
        head.open_chain(tiny_package, [(pair[0], 0, 4)], changes=changes, **options)
    assert (failed.value.where or "").startswith("full: ")
    assert not stage_processes()


def test_nobody_has_the_model(head: ScriptedHead, pair: tuple[Node, Node], tiny_package: Path) -> None:
    with pytest.raises(StageError, match="no other node in the fleet has the model"):
        head.open_chain(tiny_package, [(pair[1], 0, 4)], holders=[pair[1]])


def test_a_stage_begins_with_start(head: ScriptedHead, pair: tuple[Node, Node], tiny_package: Path) -> None:
    order = OpenStage(stage="it", model=ref(tiny_package, []), start=Stop())
    head.server.tell(pair[0].key, order)
    said = head.said.get(timeout=PATIENCE)
    assert isinstance(said, TaskFailed)
    assert (said.task, said.what) == ("it", "a stage begins with start, not with stop")


def test_a_stage_is_closed_while_it_fetches(head: ScriptedHead, pair: tuple[Node, Node], tiny_package: Path) -> None:
    _, bare = pair
    with socket.create_server((HOST, 0)) as silent:  # takes connections and never says a word
        mute = Neighbour(id=KeyPair.new().public, name="mute", addresses=(HOST,), bulk_port=silent.getsockname()[1])
        head.server.tell(bare.key, Directory(nodes=(mute,)))
        heard: SimpleQueue[FromStage | StageError] = SimpleQueue()
        model = ref(tiny_package, []).model_copy(update={"holders": (mute.id,)})
        config = StageConfig(package=Path("any"), first_layer=0, end_layer=4)
        stage = head.orders.open_stage(bare.key, "it", model, Start(config=config), lambda _, said: heard.put(said))
        until(lambda: bare.status.stages)
        stage.terminate()
        error = heard.get(timeout=PATIENCE)
        assert isinstance(error, StageError)
        assert "cancelled" in error.what
        assert stage.wait(PATIENCE)
