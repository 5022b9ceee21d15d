"""What every engine must do, against the unsplit model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chains import CLOSE, Chain, chain
from numpy.typing import NDArray
from packages import llamacpp_package_of, package_of
from tiny_gguf import write_tiny_gguf
from unsplit import Whole, WholeGguf
from zoo import LAYERS, VOCABULARY, family_ir

from shards.errors import CapacityError, StageError
from shards.row_shapes import RowShapes
from shards.runtime import Batch, SequenceRows

OPENVINO = ("openvino-paged", "openvino-stateful")
ENGINES = (*OPENVINO, *(("llamacpp",) if find_spec("llama_cpp") else ()))
SPLITS = ((0, LAYERS), (0, 1, LAYERS), (0, 1, 2.5, LAYERS))
TOKENS = np.random.default_rng(7).integers(3, VOCABULARY, 200).tolist()


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tiny(engine: str, tiny_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama of four layers, as the engine takes it."""
    if engine != "llamacpp":
        return tiny_package
    folder = tmp_path_factory.mktemp("tiny")
    source = write_tiny_gguf(folder / "tiny.gguf", layers=LAYERS, stored="F32", vocabulary_size=VOCABULARY)
    return llamacpp_package_of(source, folder / "package")


@pytest.fixture(scope="module")
def whole(engine: str, tiny: Path) -> Whole | WholeGguf:
    return WholeGguf(tiny) if engine == "llamacpp" else Whole(tiny)


@pytest.fixture(scope="module")
def logits(whole: Whole) -> NDArray[np.float32]:
    return whole.logits(TOKENS)


@pytest.fixture(scope="module")
def shared(engine: str, tiny: Path) -> Iterator[Chain]:
    with chain(tiny, (0, 1, LAYERS), engine=engine) as loaded:
        yield loaded


def edges_for(engine: str, edges: Sequence[float]) -> Sequence[float]:
    """llama.cpp stages have whole layers."""
    return [floor(edge) for edge in edges] if engine == "llamacpp" else edges


@pytest.fixture
def two(shared: Chain) -> Iterator[Chain]:
    """Two stages without a sequence."""
    yield shared
    shared.free(*range(10))


def assert_close(got: NDArray[Any], want: NDArray[Any]) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("edges", SPLITS, ids=lambda edges: f"{len(edges) - 1} stages")
def test_sequences_side_by_side_get_the_unsplit_models_tokens(
    tiny: Path, whole: Whole, engine: str, edges: tuple[float, ...]
) -> None:
    prompts = {1: TOKENS[:1], 5: TOKENS[3:36], 2: TOKENS[40:110]}
    with chain(tiny, edges_for(engine, edges), engine=engine) as stages:
        got = stages.generate(prompts, count=24, chunk=24)
    assert got == {sequence: whole.generate(prompt, 24) for sequence, prompt in prompts.items()}


def test_a_real_model_that_is_cut_within_a_layer_gets_the_unsplit_models_tokens(smollm2_package: Path) -> None:
    """Cut between layers, whole processes of it do in every engine: see test_exact_generation, test_llamacpp_stages."""
    prompts = {1: [504, 3575, 282, 4649, 314], 2: TOKENS[:50]}
    with chain(smollm2_package, (0, 13.5, 30)) as stages:
        got = stages.generate(prompts, count=12, chunk=33)
    unsplit = Whole(smollm2_package)
    assert got == {sequence: unsplit.generate(prompt, 12) for sequence, prompt in prompts.items()}


@pytest.mark.parametrize("family", ["mistral", "gptoss"])
@pytest.mark.parametrize("engine", OPENVINO)
def test_a_rollback_is_exact_with_a_sliding_window(family: str, engine: str, tmp_path: Path) -> None:
    package = package_of(family_ir(family), tmp_path / family)
    want = Whole(package).logits(TOKENS[:60])
    with chain(package, (0, 2, LAYERS), engine=engine) as stages:
        stages.rows(1, 0, TOKENS[:40])
        stages.rows(1, 40, TOKENS[100:108])
        assert_close(stages.rows(1, 40, TOKENS[40:60]), want[40:60])


def test_a_rollback_forgets(two: Chain, logits: NDArray[np.float32]) -> None:
    two.rows(1, 0, TOKENS[:70])
    two.rows(2, 0, TOKENS[:9])
    two.rows(1, 70, TOKENS[150:158])
    two.step([SequenceRows(1, 72, 3), SequenceRows(2, 9, 3)], [*TOKENS[180:183], *TOKENS[9:12]])
    both = two.step([SequenceRows(1, 50, 20, 20), SequenceRows(2, 12, 2, 2)], TOKENS[50:70] + TOKENS[12:14])
    assert_close(both, np.concatenate([logits[50:70], logits[12:14]]))
    assert_close(two.rows(1, 0, TOKENS[:3]), logits[:3])


def test_a_rollback_may_come_without_rows(two: Chain, logits: NDArray[np.float32]) -> None:
    two.rows(1, 0, TOKENS[:40])
    two.rows(2, 0, TOKENS[:5])
    mixed = two.step([SequenceRows(1, 33, 0), SequenceRows(2, 5, 1, 1)], TOKENS[5:6])
    assert_close(mixed, logits[5:6])
    with pytest.raises(StageError, match="34 tokens should be cached, 33 are"):
        two.rows(1, 34, TOKENS[34:35])
    assert_close(two.rows(1, 33, TOKENS[33:35]), logits[33:35])


def test_many_rollbacks_keep_the_logits(two: Chain, logits: NDArray[np.float32]) -> None:
    """Speculation that always fails: five wrong rows after each right one."""
    two.rows(1, 0, TOKENS[:20])
    for position in range(20, 60):
        got = two.step([SequenceRows(1, position, 6, 6)], [TOKENS[position], *TOKENS[140:145]])
        assert_close(got[:1], logits[position : position + 1])


def test_a_fork_gives_the_logits_of_recomputing(two: Chain, logits: NDArray[np.float32], whole: Whole) -> None:
    block = max(stage.facts.block for stage in two.stages)
    two.rows(1, 0, TOKENS[: block + 9])
    two.fork(1, 2, block)
    other = [*TOKENS[:block], *TOKENS[100:130]]
    assert_close(two.rows(2, block, TOKENS[100:130]), whole.logits(other)[block:])
    assert_close(two.rows(1, block + 9, TOKENS[block + 9 : 80]), logits[block + 9 : 80])
    two.free(1)
    two.rows(3, 0, TOKENS[120:190])  # takes what the source has given back
    assert_close(two.rows(2, block, TOKENS[100:103]), whole.logits(other)[block : block + 3])


def test_a_fork_leaves_hidden_rows_behind(two: Chain, logits: NDArray[np.float32]) -> None:
    block = max(stage.facts.block for stage in two.stages)
    two.rows(1, 0, TOKENS[: block - 4])
    two.rows(1, block - 4, TOKENS[150:153])
    two.rows(1, block - 4, TOKENS[block - 4 : block + 2])
    two.fork(1, 2, block)
    assert_close(two.rows(2, block, TOKENS[block : block + 8]), logits[block : block + 8])


def test_a_freed_number_is_a_new_sequence(two: Chain, logits: NDArray[np.float32]) -> None:
    two.rows(1, 0, TOKENS[50:90])
    two.free(1)
    two.free(1)
    with pytest.raises(StageError, match="sequence 1: the sequence is unknown"):
        two.rows(1, 40, TOKENS[:1])
    assert_close(two.rows(1, 0, TOKENS[:4]), logits[:4])


def test_a_step_without_wanted_rows_gives_none(two: Chain, logits: NDArray[np.float32]) -> None:
    assert two.step([SequenceRows(1, 0, 8), SequenceRows(2, 0, 3)], TOKENS[:8] + TOKENS[:3]).shape == (0, VOCABULARY)
    assert_close(two.rows(1, 8, TOKENS[8:10]), logits[8:10])
    assert_close(two.rows(2, 3, TOKENS[3:10]), logits[3:10])


def test_an_empty_step_gives_nothing(two: Chain) -> None:
    assert two.step([], []).shape == (0, VOCABULARY)
    first = two.stages[0]
    assert first.step(Batch((), np.zeros(0, np.int64))).shape == (0, first.facts.hidden_size)


def test_wanted_rows_are_the_last_of_each_sequence(two: Chain, logits: NDArray[np.float32]) -> None:
    got = two.step(
        [SequenceRows(1, 0, 8, 2), SequenceRows(2, 0, 3), SequenceRows(3, 0, 5, 5)],
        TOKENS[:8] + TOKENS[:3] + TOKENS[:5],
    )
    assert_close(got, np.concatenate([logits[6:8], logits[:5]]))


def test_a_full_cache_leaves_everything_as_it_was(tiny: Path, logits: NDArray[np.float32], engine: str) -> None:
    with chain(tiny, (0, LAYERS), engine=engine, kv_tokens=100) as one:
        facts = one.stages[0].facts
        assert facts.kv_tokens >= 100
        assert facts.kv_tokens % facts.block == 0
        one.rows(1, 0, TOKENS[:60])
        with pytest.raises(CapacityError, match="the KV cache is full"):
            one.step([SequenceRows(1, 50, 1), SequenceRows(2, 0, 90)], TOKENS[50:51] + TOKENS[:90])
        with pytest.raises(StageError, match="sequence 2: the sequence is unknown"):
            one.rows(2, 1, TOKENS[:1])
        assert_close(one.rows(1, 60, TOKENS[60:64]), logits[60:64])
        one.free(1)
        assert_close(one.rows(2, 0, TOKENS[:90]), logits[:90])


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (Batch((SequenceRows(1, 0, 3),), np.zeros(2, np.int64)), r"rows of shape \[2\], its sequences call for \[3\]"),
        (Batch((SequenceRows(1, 0, 2, 3),), np.zeros(2, np.int64)), "sequence 1: 3 of 2 rows were asked for"),
        (Batch((SequenceRows(1, 0, 1),), np.array([VOCABULARY])), f"outside the vocabulary of {VOCABULARY}"),
        (Batch((SequenceRows(1, 0, 1),), np.array([-1])), f"outside the vocabulary of {VOCABULARY}"),
        (Batch((SequenceRows(1, 2, 1),), np.array([1])), "sequence 1: the sequence is unknown"),
    ],
)
def test_impossible_batches_are_refused(two: Chain, batch: Batch, message: str) -> None:
    with pytest.raises(StageError, match=message):
        two.stages[0].step(batch)
    with pytest.raises(StageError, match="unknown"):  # nothing of it was opened
        two.rows(1, 1, TOKENS[:1])


def test_a_step_may_be_prepared_before_its_rows_are_there(two: Chain, logits: NDArray[np.float32]) -> None:
    first = (SequenceRows(1, 0, 8, 2), SequenceRows(2, 0, 3))
    x: NDArray[Any] = np.array(TOKENS[:8] + TOKENS[:3])
    for stage in two.stages:
        stage.prepare(first)
        x = stage.step(Batch(first, x))
    assert_close(x, logits[6:8])
    for stage in two.stages:  # another one comes after all
        stage.prepare((SequenceRows(1, 8, 1, 1), SequenceRows(2, 3, 1)))
    assert_close(two.rows(2, 3, TOKENS[3:5]), logits[3:5])
    assert_close(two.rows(1, 8, TOKENS[8:10]), logits[8:10])


def test_rows_that_do_not_suit_what_was_prepared_leave_nothing(two: Chain, logits: NDArray[np.float32]) -> None:
    two.rows(1, 0, TOKENS[:8])
    rows = (SequenceRows(1, 8, 3, 1),)
    two.stages[0].prepare(rows)
    with pytest.raises(StageError, match="its sequences call for"):
        two.stages[0].step(Batch(rows, np.array(TOKENS[8:10])))
    with pytest.raises(StageError, match="11 tokens should be cached, 8 are"):
        two.rows(1, 11, TOKENS[11:12])
    assert_close(two.rows(1, 8, TOKENS[8:12]), logits[8:12])


def test_rows_that_fill_a_step_up_change_nothing(tiny_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = Whole(tiny_package).logits(TOKENS)
    monkeypatch.setattr(RowShapes, "fitting", lambda self, rows: rows + 3)
    settings: dict[str, Any] = {"mode": "fast", "kv_precision": "f32", "tune": False, "kv_tokens": 128}
    with chain(tiny_package, (0, 1.5, LAYERS), **settings) as stages:
        assert_close(stages.rows(1, 0, TOKENS[:30]), want[:30])
        mixed = stages.step([SequenceRows(1, 30, 5, 2), SequenceRows(2, 0, 40)], TOKENS[30:35] + TOKENS[:40])
        assert_close(mixed, want[33:35])
        assert stages.step([SequenceRows(2, 40, 1)], TOKENS[40:41]).shape == (0, VOCABULARY)
        both = stages.step([SequenceRows(1, 35, 1, 1), SequenceRows(2, 41, 1, 1)], [TOKENS[35], TOKENS[41]])
        assert_close(both, want[[35, 41]])
        assert [stage.added_rows for stage in stages.stages] == [3, 3]


def test_hidden_states_of_the_wrong_width_are_refused(two: Chain) -> None:
    with pytest.raises(StageError, match="its sequences call for"):
        two.stages[1].step(Batch((SequenceRows(1, 0, 1),), np.zeros((1, 7), np.float32)))


def test_a_chain_may_mix_engines(tiny_package: Path) -> None:
    with (
        chain(tiny_package, (0, 2), engine="openvino-stateful") as first,
        chain(tiny_package, (2, LAYERS), engine="openvino-paged") as second,
    ):
        got = Chain([*first.stages, *second.stages]).generate({1: TOKENS[:40]}, count=8, chunk=16)
    assert got == {1: Whole(tiny_package).generate(TOKENS[:40], 8)}


def test_a_failed_step_leaves_no_rows(
    tiny: Path, logits: NDArray[np.float32], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with chain(tiny, (0, LAYERS), engine=engine) as one:
        one.rows(1, 0, TOKENS[:40])
        one.rows(2, 0, TOKENS[:40])
        rows = [SequenceRows(1, 35, 3), SequenceRows(2, 38, 1), SequenceRows(3, 0, 1)]
        with monkeypatch.context() as patch:
            fail_next_step(engine, patch)
            with pytest.raises(StageError, match=r"layers 0-3: CPU failed in .*: (the device was lost|llama.cpp .*-3)"):
                one.step(rows, TOKENS[:5])
        with pytest.raises(StageError, match="36 tokens should be cached, 35 are"):
            one.rows(1, 36, TOKENS[:1])
        assert_close(one.rows(1, 35, TOKENS[35:50]), logits[35:50])
        assert_close(one.rows(3, 0, TOKENS[:5]), logits[:5])
        assert_close(one.rows(2, 0, TOKENS[:50]), logits[:50])


def fail_next_step(engine: str, patch: pytest.MonkeyPatch) -> None:
    """The device does what it is to do, and says that it failed; the stateful engine's after one of its sequences."""
    if engine == "llamacpp":
        from llama_cpp import llama_cpp as lib

        decode = lib.llama_decode
        patch.setattr(lib, "llama_decode", lambda *batch: decode(*batch) - 3)
        return
    import openvino as ov

    infer, calls = ov.InferRequest.infer, []

    def fail(self: ov.InferRequest, **options: bool) -> object:
        calls.append(1)
        answer = infer(self, **options)
        if len(calls) == (2 if engine == "openvino-stateful" else 1):
            raise RuntimeError("at some place:\nthe device was lost")
        return answer

    patch.setattr(ov.InferRequest, "infer", fail)
