"""`--draft-vocabulary N`: a draft's head matrix with the rows of the most frequent tokens alone.

A small model spends most of its time on its head matrix, and most of the rows are hardly ever the answer (FR-Spec:
Zhao et al., 2025, arXiv:2502.14856). The embedding keeps all of its rows: a draft reads whatever its target writes.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exporters import facts
from exporters.agreement import tokenise_all
from exporters.sources import PreparedSource
from shards.errors import ConfigurationError, ExportError
from shards.progress import Progress

OPTION = "--draft-vocabulary"
COUNTS = "counts"
"""The array of an .npz corpus: how often each token id comes."""

_CHUNK = 2**16
"""Characters of a corpus, about, that are tokenised at a time."""


@dataclass(frozen=True, slots=True)
class DraftWish:
    """What a draft's head shall know: the `size` most frequent tokens of a corpus.

    Raises:
        ConfigurationError: there is no such file.
    """

    size: int
    corpus: Path
    """A text file (UTF-8), or an .npz with `counts` of each token id."""

    def __post_init__(self) -> None:
        if not self.corpus.is_file():
            raise ConfigurationError(
                "there is no such file", where=str(self.corpus), hint="Give a text, or an .npz with counts of tokens."
            )


@dataclass(frozen=True, slots=True)
class Kept:
    """The tokens of a trimmed head."""

    ids: NDArray[np.int32]
    """Ascending."""
    coverage: float
    """Share of the corpus that is made of them (0..1)."""


def apply(source: PreparedSource, wish: DraftWish, workdir: Path, progress: Progress) -> PreparedSource:
    """The source with its head trimmed; what was there stays, to be compared with.

    Args:
        source: A whole model.
        wish: Which tokens to keep.
        workdir: An empty folder for the new graph, on the file system of the package.
        progress: Told how much of the corpus is counted.

    Raises:
        ExportError: the corpus cannot be counted, or so many tokens are not there to choose from.
        GraphError: the head matrix of this graph cannot be trimmed.
    """
    kept = choose(count(wish.corpus, source, progress), wish.size, source.facts.stop_tokens)
    progress("trimming the head", 0, 1)
    graph, ids = workdir / "graph.xml", workdir / "ids.bin"
    weights = _write_trimmed(source, kept.ids, graph)
    ids.write_bytes(kept.ids.astype("<i4").tobytes())
    progress("trimming the head", 1, 1)
    said = f"{len(kept.ids)} of {source.facts.vocabulary} tokens, which make {kept.coverage:.2%} of {wish.corpus.name}"
    return replace(
        source,
        graph=graph,
        weights=graph.with_suffix(".bin"),
        draft_vocabulary=ids,
        facts=source.facts.model_copy(update={"draft_vocabulary": len(kept.ids), "weights": weights}),
        description={**source.description, "draft_vocabulary": said},
    )


def choose(counts: NDArray[np.int64], size: int, stop_tokens: tuple[int, ...]) -> Kept:
    """The stop tokens, and of the others the most frequent ones (lower ids first on ties), `size` together.

    Raises:
        ExportError: there are not more tokens than that, or it leaves no room beside the stop tokens.
    """
    if not len(stop_tokens) < size < len(counts):
        raise ExportError(
            f"{size} tokens were asked for; there are {len(counts)}, of which {len(stop_tokens)} end an answer and are"
            " always kept",
            where=OPTION,
            hint=f"Ask for {len(stop_tokens) + 1} to {len(counts) - 1}; 8192 is a good start.",
        )
    order = np.argsort(-counts, kind="stable")
    others = order[~np.isin(order, stop_tokens)][: size - len(stop_tokens)]
    ids = np.sort(np.concatenate([np.array(stop_tokens, np.int64), others])).astype(np.int32)
    return Kept(ids, float(counts[ids].sum() / max(counts.sum(), 1)))


def count(corpus: Path, source: PreparedSource, progress: Progress) -> NDArray[np.int64]:
    """How often each token id comes in a corpus, shape [vocabulary].

    Raises:
        ExportError: it cannot be read, is of another model, or has no tokens.
    """
    vocabulary = source.facts.vocabulary
    if corpus.suffix.lower() == ".npz":
        counts = _stored(corpus)
        if counts.shape != (vocabulary,):
            raise _unusable(corpus, f"it counts {len(counts)} tokens, the model has {vocabulary}")
    else:
        counts = _counted(corpus, source, progress)
    if not counts.any():
        raise _unusable(corpus, "it has no tokens")
    return counts


def _stored(corpus: Path) -> NDArray[np.int64]:
    try:
        with np.load(corpus, allow_pickle=False) as stored:
            counts: NDArray[np.generic] = stored[COUNTS]
    except KeyError:
        raise _unusable(corpus, f"it has no array {COUNTS!r}") from None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise _unusable(corpus, f"it cannot be read ({error})") from None
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts.size and counts.min() < 0):
        raise _unusable(corpus, f"{COUNTS!r} is not a list of counts, one for each token id")
    return counts.astype(np.int64)


def _counted(corpus: Path, source: PreparedSource, progress: Progress) -> NDArray[np.int64]:
    if source.tokenizer is None:
        raise _unusable(corpus, "the model has no tokenizer to count the tokens of a text with")
    counts = np.zeros(source.facts.vocabulary, np.int64)
    try:
        for ids in tokenise_all(source.tokenizer, _chunks(corpus, progress)):
            if ids.size and ids.max() >= len(counts):
                raise _unusable(corpus, f"the tokenizer makes token {ids.max()}, the model knows {len(counts)}")
            counts += np.bincount(ids, minlength=len(counts))
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(corpus, f"it cannot be read as UTF-8 text ({error})") from None
    return counts


def _chunks(corpus: Path, progress: Progress) -> Iterator[str]:
    """The text in pieces that end with a line."""
    total, done = corpus.stat().st_size, 0
    with corpus.open(encoding="utf-8") as lines:
        while chunk := lines.readlines(_CHUNK):
            text = "".join(chunk)
            yield text
            done += len(text.encode())
            progress("counting tokens", min(done, total), total)


def _write_trimmed(source: PreparedSource, ids: NDArray[np.int32], graph: Path) -> str:
    """Write the trimmed graph; returns how its weights are stored."""
    import openvino as ov

    from shards.device import reason
    from shards.graph import trim_head

    try:
        model = ov.Core().read_model(source.graph, source.weights)
        model.set_friendly_name(str(source.graph))
        trim_head(model, ids)
        ov.serialize(model, graph, graph.with_suffix(".bin"))
    except RuntimeError as error:
        raise ExportError(f"the trimmed graph cannot be written ({reason(error)})", where=str(graph)) from error
    return facts.describe_weights(model)


def _unusable(corpus: Path, why: str) -> ExportError:
    return ExportError(
        why, where=str(corpus), hint=f"Give a UTF-8 text, or an .npz with {COUNTS!r} made with this model's tokenizer."
    )
