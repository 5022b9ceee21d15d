"""A model running in llama.cpp stages: everything the head does with the OpenVINO engines, it does with these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
from tiny_gguf import write_tiny_gguf

from pipeline.layout import lay_out
from pipeline.messages import Finished, Request, RequestEvent, Sampling, TokenEvent
from pipeline.running import RunningModel, RunOptions
from shards import manifest as manifests
from shards.edges import layer_words
from shards.errors import ConfigurationError, PackageError
from shards.progress import silent
from shards.runtime import Mode

NEW = 32
GREEDY = Sampling(temperature=0.0)
OPTIONS = RunOptions(
    stages=2, engine="llamacpp", mode="exact", threads=1, token_budget=40, kv_tokens=2048, max_sequences=8
)
PROMPTS = [np.random.default_rng(n).integers(3, 270, length).tolist() for n, length in enumerate((5, 33, 70, 100))]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama in f32: what is quantised rounds what goes into a layer, so texts depend on who shares a step."""
    from exporters.export import export

    folder = tmp_path_factory.mktemp("tiny")
    source = write_tiny_gguf(folder / "tiny.gguf", layers=4, stored="F32")
    return export(str(source), folder / "tiny", backend="llamacpp").package


@pytest.fixture(scope="module")
def model(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningModel]:
    cache = tmp_path_factory.mktemp("cache")
    with RunningModel.open(tiny, OPTIONS.model_copy(update={"cache": cache})) as running:
        yield running


@pytest.fixture(scope="module")
def want(tiny: Path) -> list[list[int]]:
    return unsplit(Path(manifests.read(tiny).source["path"]), PROMPTS, NEW)


def unsplit(gguf: Path, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Greedy answers of llama-cpp-python, one prompt at a time."""
    import llama_cpp

    whole = llama_cpp.Llama(
        str(gguf), n_ctx=2048, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False,
        type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32,
    )  # fmt: skip
    answers = []
    for prompt in prompts:
        whole.reset()
        tokens, answer = list(prompt), list[int]()
        while len(answer) < count:
            whole.eval(tokens)
            tokens = [int(np.argmax(whole.scores[whole.n_tokens - 1]))]
            answer += tokens
        answers.append(answer)
    return answers


def ask(model: RunningModel, prompts: Sequence[Sequence[int]], name: str, tokens: int = NEW) -> list[list[int]]:
    """All at once; gives the answers."""
    events: SimpleQueue[RequestEvent] = SimpleQueue()
    got: dict[str, list[int]] = {f"{name} {i}": [] for i in range(len(prompts))}
    for i, prompt in enumerate(prompts):
        model.head.submit(Request(f"{name} {i}", tuple(prompt), GREEDY, tokens), events.put)
    left = len(prompts)
    while left:
        event = events.get(timeout=120)
        if isinstance(event, TokenEvent):
            got[event.request].append(event.token.token)
        else:
            assert isinstance(event, Finished), event
            left -= 1
    return list(got.values())


def test_two_processes_say_what_the_unsplit_model_says(model: RunningModel, want: list[list[int]]) -> None:
    assert [facts.engine for facts in model.chain.facts] == ["llamacpp", "llamacpp"]
    assert ask(model, PROMPTS, "together") == want
    assert [ask(model, [prompt], f"alone {i}")[0] for i, prompt in enumerate(PROMPTS)] == want


def test_a_real_model_asked_alone_says_what_the_unsplit_one_says(
    smollm2_llamacpp_package: Path, smollm2_gguf: Path, tmp_path: Path
) -> None:
    options = OPTIONS.model_copy(update={"cache": tmp_path})
    with RunningModel.open(smollm2_llamacpp_package, options) as running:
        prompt = running.tokenizer.encode("The capital of France is")
        (answer,) = ask(running, [prompt], "alone")
        assert "Paris" in running.tokenizer.decode(answer)
    assert answer == unsplit(smollm2_gguf, [prompt], NEW)[0]


def test_a_prefix_is_forked_and_gives_the_same_answer(model: RunningModel, want: list[list[int]]) -> None:
    ask(model, PROMPTS[3:], "first")
    cached = model.head.snapshot().scheduler.cached_tokens
    assert ask(model, [PROMPTS[3], [*PROMPTS[3][:64], *PROMPTS[0]]], "again")[0] == want[3]
    assert model.head.snapshot().scheduler.cached_tokens - cached >= 96 + 64


def test_cancelling_frees_and_the_next_one_runs(model: RunningModel, want: list[list[int]]) -> None:
    events: SimpleQueue[RequestEvent] = SimpleQueue()
    model.head.submit(Request("long", tuple(PROMPTS[1]), GREEDY, 400), events.put)
    assert isinstance(events.get(timeout=60), TokenEvent)
    model.head.cancel("long")
    while isinstance(event := events.get(timeout=60), TokenEvent):
        pass
    assert isinstance(event, Finished) and event.reason == "cancelled"
    assert ask(model, PROMPTS[:1], "after") == want[:1]
    assert model.head.snapshot().scheduler.kv_used == 0


def test_who_had_to_stop_goes_on_with_the_same_tokens(tiny: Path, tmp_path: Path) -> None:
    prompts = [prompt[:5] for prompt in PROMPTS]
    with RunningModel.open(tiny, OPTIONS.model_copy(update={"kv_tokens": 256, "cache": tmp_path})) as small:
        got = ask(small, prompts, "narrow", 100)
        shot = small.head.snapshot().scheduler
    assert got == unsplit(Path(manifests.read(tiny).source["path"]), prompts, 100)
    assert shot.preemptions > 0
    assert (shot.kv_used, shot.running, shot.preempted) == (0, 0, 0)


def test_guesses_change_no_token(tiny: Path, want: list[list[int]], tmp_path: Path) -> None:
    options = OPTIONS.model_copy(update={"draft": "ngram", "draft_tokens": 3, "cache": tmp_path})
    with RunningModel.open(tiny, options) as running:
        assert ask(running, PROMPTS, "guessed") == want
        assert ask(running, PROMPTS, "guessed again") == want


@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_stages_have_whole_layers_in_every_mode(mode: Mode, smollm2_llamacpp_package: Path, tmp_path: Path) -> None:
    manifest = manifests.read(smollm2_llamacpp_package)
    options = RunOptions(stages=3, engine="llamacpp", mode=mode)
    layout = lay_out(smollm2_llamacpp_package, manifest, options, tmp_path, silent)
    assert all(edge == int(edge) for stage in layout.stages for edge in (stage.first_layer, stage.end_layer))
    assert not any("½" in layer_words(stage) for stage in layout.stages)
    assert {stage.engine for stage in layout.stages} == {"llamacpp"}
    assert (layout.step_times is not None) is (mode == "fast")  # which is measured


def test_more_at_once_than_stages_hold_are_refused(smollm2_llamacpp_package: Path, tmp_path: Path) -> None:
    options = OPTIONS.model_copy(update={"max_sequences": 128, "token_budget": 128, "cache": tmp_path})
    with pytest.raises(ConfigurationError, match=r"128 sequences are to run at once, the stages hold 128.*at most 127"):
        RunningModel.open(smollm2_llamacpp_package, options).close()


def test_a_package_without_the_backend_starts_nothing(smollm2_package: Path) -> None:
    with pytest.raises(PackageError, match=r"no llama.cpp backend"):
        RunningModel.open(smollm2_package, OPTIONS)
