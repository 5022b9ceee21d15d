"""A served model with a drafter: the same text, faster or not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest
from eventually import eventually
from packages import link, rehash
from tiny_gguf import write_tiny_gguf

from exporters.export import export
from pipeline import layout
from pipeline.layout import RunOptions
from pipeline.messages import Finished, Request, RequestEvent, Sampling, TokenEvent
from pipeline.running import RunningModel
from pipeline.speculation import same_tokenizer
from pipeline.speculation.draft_choice import DraftChoice, beside_lookup
from pipeline.speculation.draft_run import DraftRun
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests
from shards.errors import ConfigurationError, EdgeAgentError, PackageError, StageError

SECONDS = 300.0
PROMPTS = (
    ("Repeat this: one two three four five six. one two three four five six. one two", Sampling(temperature=0.0)),
    ("The capital of France is", Sampling(temperature=0.7, seed=1)),
    ("Once upon a time", Sampling(temperature=1.2, seed=2, frequency_penalty=0.2)),
)
NEW = 32


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft has the lowest priority: beside other tests a step of it may take long, and is not lost for that."""
    monkeypatch.setattr(layout, "DraftRun", partial(DraftRun, stall_seconds=300.0))


@pytest.fixture
def others() -> set[int]:
    """Processes of this one that were there before the test: what other modules share lives on beside it."""
    return {child.pid for child in psutil.Process().children()}


def children(others: set[int]) -> list[psutil.Process]:
    """Those that came since."""
    return [child for child in psutil.Process().children() if child.pid not in others]


def nothing(model: RunningModel) -> None:
    """No harm."""


def answers(model: RunningModel, meanwhile: Callable[[RunningModel], None] = nothing) -> dict[str, list[int]]:
    """All prompts at once; something happens after the first tokens."""
    events: SimpleQueue[RequestEvent] = SimpleQueue()
    for i, (prompt, sampling) in enumerate(PROMPTS):
        model.head.submit(Request(str(i), tuple(model.tokenizer.encode(prompt)), sampling, NEW), events.put)
    said: dict[str, list[int]] = {str(i): [] for i in range(len(PROMPTS))}
    ended = come = 0
    while ended < len(PROMPTS):
        event = events.get(timeout=SECONDS)
        if isinstance(event, TokenEvent):
            said[event.request].append(event.token.token)
            come += 1
            if come == 12:
                meanwhile(model)
        else:
            assert isinstance(event, Finished), event
            ended += 1
    return said


def options(**more: Any) -> RunOptions:
    patience = float("inf")  # the machine may be busy
    return RunOptions(
        **{"stages": 2, "mode": "exact", "tune": False, "kv_tokens": 2048, "draft_patience_ms": patience, **more}
    )


@pytest.fixture(scope="module")
def plain(smollm2_package: Path) -> dict[str, list[int]]:
    with RunningModel.open(smollm2_package, options()) as model:
        assert model.head.snapshot().drafter is None
        return answers(model)


@pytest.mark.parametrize(
    ("is_model", "draft_tokens", "asynchronous"), [(False, 4, True), (True, 4, False), (True, None, True)]
)
def test_the_text_is_the_same(
    smollm2_package: Path,
    plain: dict[str, list[int]],
    is_model: bool,
    draft_tokens: int | None,
    asynchronous: bool,
    others: set[int],
) -> None:
    draft = str(smollm2_package) if is_model else "ngram"
    wanted = options(draft=draft, draft_tokens=draft_tokens, asynchronous=asynchronous)
    with RunningModel.open(smollm2_package, wanted) as model:
        assert answers(model) == plain
        snapshot = model.head.snapshot()
        assert snapshot.drafter is not None and snapshot.drafter.off is None
        assert snapshot.drafter.name == ("n-gram, then " + model.manifest.facts.name if is_model else "n-gram")
        assert 0 <= snapshot.scheduler.right_guesses <= snapshot.scheduler.sent_guesses
        if draft_tokens is not None:
            assert snapshot.scheduler.right_guesses > 0
    assert not children(others)


def test_a_draft_of_fewer_layers_that_is_wrong_changes_nothing(tiny_chat_package: Path, tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "draft.gguf", layers=2)
    draft = export(str(source), tmp_path / "draft", weights="keep", verified=False).package
    with RunningModel.open(tiny_chat_package, options()) as model:
        plain = answers(model)
    with RunningModel.open(tiny_chat_package, options(draft=str(draft), draft_tokens=6)) as model:
        assert answers(model) == plain
        counts = model.head.snapshot().scheduler
        assert counts.right_guesses < counts.sent_guesses


def off(model: RunningModel) -> str:
    """Why its drafter guesses no more."""
    drafter = model.head.snapshot().drafter
    assert drafter is not None
    return drafter.off or ""


def test_the_text_goes_on_when_its_draft_dies(
    smollm2_package: Path, plain: dict[str, list[int]], others: set[int]
) -> None:
    def kill(model: RunningModel) -> None:
        stages = {stage.pid for stage in model.chain.stages}
        (draft,) = [child for child in children(others) if child.pid not in stages]
        draft.kill()

    with RunningModel.open(smollm2_package, options(draft=str(smollm2_package), draft_tokens=4)) as model:
        assert answers(model, kill) == plain
        assert eventually(lambda: off(model))
        assert "process ended" in off(model) and "n-gram goes on" in off(model)
        assert answers(model) == plain
    assert not children(others)


def copied(package: Path, folder: Path) -> Path:
    """A package of links, to be changed."""
    for path in package.rglob("*"):
        target = folder / path.relative_to(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            link(path, target)
    return folder


def test_a_draft_of_another_tokenizer_is_refused_before_anything_starts(
    smollm2_package: Path,
    tiny_chat_package: Path,
    others: set[int],
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        RunningModel.open(smollm2_package, options(draft=str(tiny_chat_package)))
    for package in (smollm2_package, tiny_chat_package):
        assert str(package) in str(raised.value)
        assert manifests.read(package).facts.name in str(raised.value)
    assert "token ids" in str(raised.value)
    assert not children(others)


def test_tokenizers_of_other_files_and_the_same_vocabulary_suit(smollm2_package: Path, tmp_path: Path) -> None:
    draft = copied(smollm2_package, tmp_path / "draft")
    graph = draft / manifests.TOKENIZER
    text = graph.read_text("utf-8")
    graph.unlink()  # it was a link
    graph.write_text(text.replace("\n", "\n ", 1), "utf-8")
    (draft / "manifest.json").write_bytes((smollm2_package / "manifest.json").read_bytes())
    rewritten = draft / "manifest.json"
    content = rewritten.read_bytes()
    rewritten.unlink()
    rewritten.write_bytes(content)
    rehash(draft)
    mine, other = manifests.read(smollm2_package), manifests.read(draft)
    assert mine.file(manifests.TOKENIZER).pieces != other.file(manifests.TOKENIZER).pieces
    same_tokenizer.check(smollm2_package, mine, Tokenizer.load(smollm2_package), draft, other)


@pytest.mark.parametrize(
    ("draft", "kind", "said"),
    [
        ("ngrm", ConfigurationError, "'ngrm' is not one of none, ngram and auto"),
        ("empty", PackageError, "not a model package"),
    ],
)
def test_what_is_no_draft_is_said_before_anything_starts(
    smollm2_package: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    draft: str,
    kind: type[EdgeAgentError],
    said: str,
    others: set[int],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(kind, match=said):
        RunningModel.open(smollm2_package, options(draft=draft))
    assert not children(others)


def test_a_draft_that_does_not_load_can_be_done_without(smollm2_package: Path, tmp_path: Path) -> None:
    draft = copied(smollm2_package, tmp_path / "draft")
    weights = draft / manifests.WEIGHTS
    weights.unlink()
    manifest = manifests.read(smollm2_package)
    choice = DraftChoice.of(str(draft), smollm2_package, manifest, Tokenizer.load(smollm2_package))
    with pytest.raises(StageError):
        choice.open(DraftRun(kv_tokens=512, max_rows=64, max_sequences=4, tune=False))
    drafter = beside_lookup(choice.not_loaded("it has no weights"))
    assert "it has no weights (n-gram goes on)" in (drafter.facts.off or "")
    drafter.close()
    shutil.rmtree(draft)
