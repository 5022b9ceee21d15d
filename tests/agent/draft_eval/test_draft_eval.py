"""Scores of drafts whose worth is known: the model itself, the model with fewer tokens, another model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_gguf import HIDDEN, vocabulary, write_tiny_gguf
from typer.testing import CliRunner

from agent.capture.capture_file import Captured, CapturedText, CaptureWriter
from agent.capture.records import CaptureError, End, Header, Row, Text
from agent.cli.app import app
from agent.draft_eval.evaluation import Side, effects, evaluate, report
from agent.draft_eval.guesses import DEPTH, DraftGuesses, anchors_of
from agent.draft_eval.recomputed import check_packages, sampled_again
from agent.draft_eval.scores import score
from exporters.draft_vocabulary import DraftWish
from exporters.export import export
from pipeline.messages import Open, Sampling
from pipeline.sampler import Sampler
from shards import manifest as manifests
from shards.errors import ConfigurationError
from shards.loading import load_stage
from shards.progress import silent
from shards.runtime import Batch, SequenceRows, StageConfig

SAMPLINGS = (
    Sampling(temperature=1.2, seed=1),
    Sampling(temperature=0.9, seed=2, repetition_penalty=1.3, frequency_penalty=0.4),
    Sampling(temperature=1.0, seed=3, top_p=0.8, logit_bias={40: 3.0}),
    Sampling(temperature=0.0, presence_penalty=1.5),
)
LENGTHS = (40, 33, 50, 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("draft-eval")


@pytest.fixture(scope="module")
def gguf(folder: Path) -> Path:
    return write_tiny_gguf(folder / "tiny.gguf", layers=2)


@pytest.fixture(scope="module")
def target(folder: Path, gguf: Path) -> Path:
    return export(str(gguf), folder / "target", weights="keep", verified=False).package


@pytest.fixture(scope="module")
def texts(target: Path) -> tuple[CapturedText, ...]:
    """What the model says, computed a row at a time."""
    stage = load_stage(
        StageConfig(package=target, first_layer=0, end_layer=2, mode="exact", kv_tokens=1024, capture=True)
    )
    made = []
    for number, (sampling, length) in enumerate(zip(SAMPLINGS, LENGTHS, strict=True)):
        prompt = tuple(range(10 + number, 30 + 3 * number))
        sampler = Sampler(stage.facts.vocabulary)
        sampler.open(Open(number, sampling, prompt if sampling.needs_history else (), len(prompt)))
        tokens: list[int] = []
        hidden = []
        new: tuple[int, ...] = prompt
        for _ in range(length):
            rows = SequenceRows(number, len(prompt) + len(tokens) - len(new), len(new), 1)
            logits = stage.step(Batch((rows,), np.array(new, np.int64)))
            tokens.append(sampler.sample([rows], logits)[0].token)
            hidden.append(stage.hidden_rows[0].copy())
            new = (tokens[-1],)
        made.append(CapturedText(prompt, sampling, np.array(tokens, np.int32), np.stack(hidden)))
    stage.close()
    return tuple(made)


@pytest.fixture(scope="module")
def captured(target: Path, texts: tuple[CapturedText, ...]) -> Captured:
    manifest = manifests.read(target)
    return Captured(
        Header(manifest.facts.name, manifest.package_id, manifest.facts.vocabulary, HIDDEN), texts, End(0, 0, 0, "")
    )


@pytest.fixture(scope="module")
def trimmed(folder: Path, gguf: Path, texts: tuple[CapturedText, ...]) -> Path:
    """The model with the half of the tokens that it says most."""
    counts = np.bincount(np.concatenate([text.tokens for text in texts]), minlength=len(vocabulary()))
    np.savez(folder / "counts.npz", counts=counts)
    wish = DraftWish(len(np.flatnonzero(counts)) // 2, folder / "counts.npz")
    return export(str(gguf), folder / "trimmed", weights="keep", draft=wish, verified=False).package


@pytest.fixture(scope="module")
def sides(captured: Captured, target: Path, trimmed: Path) -> list[Side]:
    return evaluate(captured, [target, trimmed], stride=3, progress=silent)


def test_the_model_itself_is_always_right(sides: list[Side]) -> None:
    scores = sides[0].scores
    assert (scores.tokens, scores.agreement, scores.coverage) == (sum(LENGTHS), 1, 1)
    assert scores.in_true_context == scores.on_its_own == scores.accepted == (1.0,) * DEPTH
    assert scores.expected_accepted == DEPTH
    assert 4.5 < scores.per_cycle[4] <= 5
    assert max(scores.shifted, scores.other_text, scores.no_context) < 0.5


def test_a_trimmed_one_is_right_about_the_tokens_it_has(
    sides: list[Side], texts: tuple[CapturedText, ...], trimmed: Path
) -> None:
    """What is likeliest with its noise stays so where others cannot be drawn; a nucleus may shift a little."""
    scores = sides[1].scores
    assert 0.5 < scores.coverage < 1
    assert abs(scores.agreement - scores.coverage) < 0.05
    with DraftGuesses(trimmed, texts) as draft:
        known = draft.known
        guesses = draft.in_true_context(texts, silent)
    assert known.sum() == manifests.read(trimmed).facts.draft_vocabulary
    free = texts[0]  # neither nucleus nor penalties
    assert ((guesses[0] == free.tokens) == known[free.tokens]).all()
    assert known[np.concatenate(guesses)].all()


def test_effects_are_of_one_change_each(sides: list[Side]) -> None:
    (effect,) = effects(sides)
    assert (effect.before, effect.after) == ("target", "trimmed")
    assert effect.what == f"{len(vocabulary())} → {sides[1].facts.draft_vocabulary} tokens"
    assert effect.won == 0
    assert effect.lost == pytest.approx(-effect.agreement)
    stored = sides[1].facts.model_copy(update={"weights": "int4 sym, group 64 + int8 sym"})
    quantised = replace(sides[1], name="quantised", facts=stored, right=~sides[1].right)
    found = {(e.before, e.after): e for e in effects([*sides, quantised])}
    assert found.keys() == {("target", "trimmed"), ("trimmed", "quantised")}
    assert found["trimmed", "quantised"].what.endswith("→ int4 + int8")
    assert found["trimmed", "quantised"].lost == pytest.approx(sides[1].scores.agreement)
    assert found["trimmed", "quantised"].won == pytest.approx(1 - sides[1].scores.agreement)
    other = replace(quantised, facts=stored.model_copy(update={"layers": 3}))
    assert len(effects([*sides, other])) == 1


@pytest.mark.parametrize("stride", [1, 7])
def test_guessing_on_begins_as_guessing_in_true_context(
    texts: tuple[CapturedText, ...], trimmed: Path, stride: int
) -> None:
    """And goes on alike for as long as the guesses are right."""
    with DraftGuesses(trimmed, texts) as draft:
        true = draft.in_true_context(texts, silent)
        own = draft.on_its_own(texts, silent, stride)
    wrong = 0
    for text, guesses, chains in zip(texts, true, own, strict=True):
        assert chains.shape == (len(anchors_of(text, stride)), DEPTH)
        for anchor, chain in zip(anchors_of(text, stride), chains, strict=True):
            right = chain == text.tokens[anchor : anchor + DEPTH]
            run = DEPTH if right.all() else int(right.argmin()) + 1
            assert (chain[:run] == guesses[anchor : anchor + run]).all()
            wrong += run < DEPTH
    assert wrong > 5


def test_the_controls_are_targets(captured: Captured, sides: list[Side]) -> None:
    made = report(captured, sides, {})
    assert len(made.targets) == 6
    assert made.ok
    hopeless = replace(sides[0], scores=replace(sides[0].scores, shifted=0.6))
    assert [target.ok for target in report(captured, [hopeless], {}).targets] == [False, True, True]
    json.dumps(made.as_json())


def test_the_head_makes_the_tokens_of_their_hidden_states(
    captured: Captured, sides: list[Side], target: Path, trimmed: Path
) -> None:
    check_packages(captured, target, [target, trimmed])
    assert sampled_again(captured, target, silent) == 1
    others = [replace(text, hidden=np.roll(text.hidden, 1, axis=0)) for text in captured.texts]
    share = sampled_again(replace(captured, texts=tuple(others)), target, silent)
    assert share < 0.5
    assert report(captured, sides, {}, 1.0).ok
    assert not report(captured, sides, {}, share).ok


def test_another_models_package_is_refused(captured: Captured, trimmed: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the recording is of tiny .*, this package is tiny"):
        check_packages(captured, trimmed, [])


def write(path: Path, captured: Captured) -> None:
    with CaptureWriter(path, 10**6) as writer:
        writer.write(captured.header)
        for number, text in enumerate(captured.texts):
            writer.write(Text(number, text.prompt, text.sampling))
            read = text.prompt[-1]
            for i, token in enumerate(text.tokens.tolist()):
                writer.write(Row(number, len(text.prompt) + i, read, token, text.hidden[i]))
                read = token
        writer.complete(End(captured.rows, 0, 0, "done"))


@pytest.mark.parametrize("lie", [{"vocabulary": 2**31 - 1}, {"hidden_size": 1}])
def test_a_recording_that_contradicts_its_package_is_refused(
    captured: Captured, target: Path, lie: dict[str, int]
) -> None:
    with pytest.raises(ConfigurationError, match="the recording says"):
        check_packages(replace(captured, header=replace(captured.header, **lie)), target, [])


def test_the_command_shows_tables_and_writes_json_and_picture(
    captured: Captured, target: Path, trimmed: Path, tmp_path: Path
) -> None:
    path, saved, picture = (tmp_path / name for name in ("x.capture", "x.json", "x.png"))
    write(path, captured)
    shown = [
        "draft-eval",
        str(path),
        str(target),
        str(trimmed),
        "--target",
        str(target),
        "--plot",
        str(picture),
        "-o",
        str(saved),
    ]
    result = CliRunner().invoke(app, shown)
    assert result.exit_code == 0, result.output
    for words in ("143 recorded tokens", "100.0%", "its own", "what one change does", "targets"):
        assert words in result.output
    assert picture.read_bytes()[:4] == b"\x89PNG"
    said = json.loads(saved.read_text("utf-8"))
    assert (said["bench"], said["ok"], len(said["targets"])) == ("draft-eval", True, 7)
    assert said["results"][0]["agreement"] == 1
    assert said["runs"][0]["after"] == "trimmed"
    result = CliRunner().invoke(app, ["draft-eval", str(path), str(target), "--texts", "1", "--json"])
    assert json.loads(result.stdout)["results"][0]["tokens"] == LENGTHS[0]


def test_a_draft_that_is_never_right_fails_its_controls(captured: Captured, target: Path, tmp_path: Path) -> None:
    wrong = [
        replace(text, tokens=np.full(20, 7, np.int32), hidden=np.zeros((20, HIDDEN), np.float32))
        for text in captured.texts
    ]
    write(tmp_path / "x", replace(captured, texts=tuple(wrong)))
    assert CliRunner().invoke(app, ["draft-eval", str(tmp_path / "x"), str(target)]).exit_code == 1


def test_a_draft_of_another_vocabulary_is_refused(captured: Captured, target: Path) -> None:
    other = replace(captured, header=replace(captured.header, vocabulary=99))
    with pytest.raises(ConfigurationError, match=f"the draft has {len(vocabulary())} tokens, the recorded model 99"):
        evaluate(other, [target], progress=silent)


def test_texts_that_are_too_short_are_refused(captured: Captured, target: Path) -> None:
    short = [replace(text, tokens=text.tokens[: DEPTH - 1]) for text in captured.texts]
    with pytest.raises(CaptureError, match=f"no recorded text has {DEPTH} tokens"):
        evaluate(replace(captured, texts=tuple(short)), [target], progress=silent)


labels = st.lists(st.integers(0, 2), min_size=DEPTH, max_size=30).map(lambda values: np.array(values))


def cycle(label: NDArray[np.int64], guess: NDArray[np.int64], count: int) -> int:
    """Verifies that a text takes, one guess after another."""
    place = cycles = 0
    while place < len(label):
        for _ in range(count):
            if place == len(label) or guess[place] != label[place]:
                break
            place += 1
        place += 1
        cycles += 1
    return cycles


@given(labels, st.data())
def test_scores_are_what_counting_one_by_one_finds(label: NDArray[np.int64], data: st.DataObject) -> None:
    guess = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(label), max_size=len(label))))
    stride = data.draw(st.integers(1, 5))
    starts = range(len(label) - DEPTH + 1)
    own = np.stack([guess[i : i + DEPTH] for i in starts[::stride]])
    scores = score([label], [guess], [own], [guess], np.array([True, False, True]), stride)
    right = guess == label
    assert scores.agreement == pytest.approx(right.mean())
    assert scores.no_context == scores.agreement
    assert scores.coverage == pytest.approx((label != 1).mean())
    for k in range(DEPTH):
        assert scores.in_true_context[k] == pytest.approx(np.mean([right[i + k] for i in starts]))
        assert scores.accepted[k] == pytest.approx(np.mean([right[i : i + k + 1].all() for i in starts]))
        assert scores.on_its_own[k] == pytest.approx(np.mean([right[i + k] for i in starts[::stride]]))
    for count, tokens in scores.per_cycle.items():
        assert tokens == pytest.approx(len(label) / cycle(label, guess, count))
    assert scores.shifted == pytest.approx((guess[:-1] == label[1:]).mean())
