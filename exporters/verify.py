"""Verified or failed: the package, run as stages, must give the logits of the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shards import manifest as manifests
from shards.errors import ExportError
from shards.manifest import ModelFacts
from shards.progress import Progress
from shards.runtime import Batch, SequenceRows, StageConfig, StageRuntime

TOLERANCE = 1e-4
"""Largest difference a logit may have, as a part of the largest logit. Sums in another order make a few parts in a
million; a wrong cut, mask or position makes tenths."""

_CHUNK = 48
"""Rows of a sequence in one step: not a multiple of any KV block, so chunks begin and end within blocks."""

_MOST_ROWS = 160
"""Of one sequence; logits are kept for all of them."""

_TEXTS = (
    "The lighthouse keeper wrote the weather into her book every morning: wind from the north-west, 4 degrees, rain by"
    " noon. Nobody had read the book for thirty years. Then a letter came, asking for the page of the 17th of March"
    " 1987, because on that day a ship had sent one word, and one word only, before it was gone. She put on her"
    " glasses, lit the lamp, and began to turn the pages back. What she found there was not what anybody had expected.",
    "def fibonacci(n: int) -> int:\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n",
    "Größe, naïveté, 数学, привет, 🙂 - text is not only English.",
    "Hello",
)


@dataclass(frozen=True, slots=True)
class Verification:
    """How far the stages are from the whole model."""

    stages: int
    rows: int
    """Tokens whose logits were compared."""
    largest_difference: float
    """Of any logit."""
    tolerance: float
    same_top: float
    """Part of the rows whose likeliest token is the same."""

    @property
    def passed(self) -> bool:
        """Whether the largest difference is within the tolerance (never true of NaN)."""
        return self.largest_difference <= self.tolerance


def sample_tokens(package: Path, facts: ModelFacts) -> list[NDArray[np.int64]]:
    """Sequences to compare on: real text through the package's tokenizer, which is checked on the way.

    Raises:
        ExportError: the tokenizer and the detokenizer do not belong together, or not to this model.
    """
    if not (package / manifests.TOKENIZER).exists():
        numbers = np.random.default_rng(0)
        return [numbers.integers(0, facts.vocabulary, count) for count in (_MOST_ROWS, 40, 1)]
    import openvino as ov
    import openvino_tokenizers  # noqa: F401 - registers the operations of tokenizer graphs

    from shards.device import reason

    core = ov.Core()
    try:
        encode = core.compile_model(package / manifests.TOKENIZER, "CPU")
        decode = core.compile_model(package / manifests.DETOKENIZER, "CPU")
        sequences = [np.array(encode([text])["input_ids"][0], np.int64) for text in _TEXTS]
        again = [str(decode([ids[None]])[0][0]) for ids in sequences]
    except RuntimeError as error:
        raise ExportError(
            f"the tokenizer does not run ({reason(error)})", where="tokenizer", hint="Convert the tokenizer again."
        ) from error
    highest = max(int(ids.max(initial=0)) for ids in sequences)
    if highest >= facts.vocabulary or not all(ids.size for ids in sequences):
        raise ExportError(
            f"the tokenizer makes token {highest}, the model knows 0-{facts.vocabulary - 1}",
            where="tokenizer",
            hint="It belongs to another model: convert the one of this model.",
        )
    for text, back in zip(_TEXTS, again, strict=True):
        if back.strip() != text.strip():
            raise ExportError(
                f"the tokenizer does not give back what it took: {text[:40]!r} became {back[:40]!r}",
                where="tokenizer",
                hint="Tokenizer and detokenizer belong to different models, or one was converted wrongly.",
            )
    return [ids[:_MOST_ROWS] for ids in sequences]


@dataclass(frozen=True, slots=True)
class Untrimmed:
    """The model that a package with a trimmed head was made from."""

    graph: Path
    weights: Path
    kept: NDArray[np.int32]
    """The columns of its logits that the package has."""


def compare(
    package: Path,
    chain: Sequence[StageConfig],
    sequences: Sequence[NDArray[np.int64]],
    progress: Progress,
    untrimmed: Untrimmed | None = None,
) -> Verification:
    """Run `sequences` through the whole graph of `package`, then through the stages of `chain`, and compare all logits.

    The whole model is released before the stages are loaded, and these are loaded one after the other. Where the head
    is trimmed, the whole model is the one with all of it.

    Raises:
        ExportError: a logit differs by more than the tolerance; the message names both numbers.
        StageError: a stage cannot be loaded.
    """
    what, total = "verifying", len(chain) + 1
    progress(what, 0, total)
    if untrimmed is None:
        whole = _whole(package / manifests.GRAPH, package / manifests.WEIGHTS, sequences)
    else:
        whole = _whole(untrimmed.graph, untrimmed.weights, sequences)
        whole = [logits[:, untrimmed.kept] for logits in whole]
    progress(what, 1, total)
    staged: Sequence[NDArray[Any]] = sequences
    for done, config in enumerate(chain, 2):
        staged = _through(config, staged)
        progress(what, done, total)
    result = _compared(whole, staged, len(chain))
    if not result.passed:
        raise ExportError(
            f"run as {result.stages} stages the model differs from the whole one: the largest difference of a logit is"
            f" {result.largest_difference:.3g}, {result.tolerance:.3g} is allowed",
            where="verification",
            hint="The package was not kept. The graph does something at its cuts that splitting does not preserve.",
        )
    return result


def halves(package: Path, layers: int) -> list[StageConfig]:
    """The package as two stages (one, where the model has a single layer)."""
    middle = layers // 2
    edges = [(0, middle), (middle, layers)] if middle else [(0, layers)]
    return [stage_config(package, first, end) for first, end in edges]


def stage_config(package: Path, first: int, end: int) -> StageConfig:
    """A stage as it is loaded for verification: CPU, exact, a cache just large enough."""
    return StageConfig(package=package, first_layer=first, end_layer=end, mode="exact", kv_tokens=1024)


def _whole(graph: Path, weights: Path, sequences: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
    """Logits [tokens, vocabulary] of each sequence by the unsplit graph."""
    import openvino as ov

    from shards.device import compile_stage, properties

    core = ov.Core()
    model = core.read_model(graph, weights)
    ports = {name for port in model.inputs for name in port.names}
    request = compile_stage(core, model, "CPU", properties("CPU", "exact")).create_infer_request()
    logits = []
    for ids in sequences:
        request.reset_state()
        feed: dict[str, Any] = {
            "input_ids": ids[None],
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "position_ids": np.arange(len(ids))[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        request.infer({name: value for name, value in feed.items() if name in ports})
        logits.append(request.get_output_tensor(0).data[0].copy())
    return logits


def _through(config: StageConfig, values: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
    """Feed all sequences through a stage, together and in chunks; gives each sequence's rows."""
    from shards.loading import load_stage

    stage = load_stage(config)
    try:
        return stepped(stage, values)
    finally:
        stage.close()


def stepped(stage: StageRuntime, values: Sequence[NDArray[Any]]) -> list[NDArray[np.float32]]:
    """What a stage makes of sequences that are fed together and in chunks: each sequence's rows."""
    parts: list[list[NDArray[np.float32]]] = [[] for _ in values]
    for past in range(0, max(map(len, values)), _CHUNK):
        active = [(number, value[past : past + _CHUNK]) for number, value in enumerate(values) if len(value) > past]
        rows = tuple(
            SequenceRows(number, past, len(chunk), sample=len(chunk) if stage.facts.is_tail else 0)
            for number, chunk in active
        )
        out = stage.step(Batch(rows, np.concatenate([chunk for _, chunk in active])))
        ends = np.cumsum([len(chunk) for _, chunk in active])
        for (number, _), part in zip(active, np.split(out, ends[:-1]), strict=True):
            parts[number].append(part.copy())
    return [np.concatenate(part) for part in parts]


def _compared(whole: Sequence[NDArray[Any]], staged: Sequence[NDArray[Any]], stages: int) -> Verification:
    # numpy's max, since Python's loses NaN
    largest = float(np.max([np.abs(want - got).max() for want, got in zip(whole, staged, strict=True)]))
    scale = float(np.max([np.abs(want).max() for want in whole]))
    same = [want.argmax(-1) == got.argmax(-1) for want, got in zip(whole, staged, strict=True)]
    return Verification(
        stages=stages,
        rows=sum(map(len, whole)),
        largest_difference=largest,
        tolerance=TOLERANCE * scale,
        same_top=float(np.concatenate(same).mean()),
    )
