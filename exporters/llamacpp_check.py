"""Whether llama.cpp stages of a GGUF give the whole model's logits, to the bit. A child job: llama.cpp ends the process
it is in over some files.

Two cuts are tried. One in the middle; one behind the first layer, which shows what depends on the number of a layer,
since the later layers are numbered anew by one. A sliding window is shortened for that, so that a few tokens show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exporters import facts
from exporters.llamacpp import METADATA, TENSORS, spans_of
from exporters.sources.gguf_file import read_gguf
from exporters.verify import stepped
from shards.errors import CapacityError, EdgeAgentError, ExportError
from shards.llamacpp import metadata, stage_file
from shards.llamacpp.binding import binding
from shards.llamacpp.metadata import GgufMetadata
from shards.llamacpp.runtime import LlamaCppRuntime
from shards.manifest import ModelFacts
from shards.progress import Progress
from shards.runtime import StageConfig

_LENGTHS = (70, 33, 1)
"""Tokens of the sequences compared."""
_WINDOW = 8
_KV_TOKENS = 256
_AGAIN = "The file is damaged, or was converted wrongly: download it again, or look for another one."
_OTHER = "Export it with --backend openvino, or export the original Hugging Face model."


def check_cuts(path: str, folder: str, progress: Progress) -> dict[str, Any]:
    """Compare two llama.cpp stages with the whole model.

    Args:
        path: The GGUF.
        folder: Where its backend has been written; stage files come and go there.
        progress: Told which stage is running.

    Returns:
        `rows`: tokens whose logits were compared.

    Raises:
        StageError: llama.cpp cannot be loaded.
        ExportError: stages differ from the whole model, or llama.cpp cannot run it.
    """
    binding()  # what is missing is no fault of the file
    file = read_gguf(Path(path))
    model = metadata.read(Path(folder) / METADATA)
    checker = _Checker(Path(folder), facts.of_gguf(file, "check"))
    numbers = np.random.default_rng(0)
    tokens = [numbers.integers(0, model.vocabulary, count) for count in _LENGTHS]
    cuts = [(0, model.depth // 2, model.depth), (0, 1, model.depth)] if model.depth > 1 else [(0, model.depth)]
    what, done, total = "comparing llama.cpp stages", 0, 1 + sum(map(len, cuts))
    try:
        progress(what, done, total)
        whole = checker.rows_of_file(file.path, 0, model.depth, tokens)
        if not all(np.isfinite(rows).all() for rows in whole):
            raise ExportError("the weights in it make no numbers of some tokens", where=path, hint=_AGAIN)
        for edges in cuts:
            reference, run = whole, model
            if edges[1] == 1 and (shortened := _shortened(model)) is not None:
                run = shortened
                reference = checker.rows(run, 0, model.depth, tokens)
            rows: Sequence[NDArray[Any]] = tokens
            for begin, end in pairwise(edges):
                done += 1
                progress(what, done, total)
                rows = checker.rows(run, begin, end, rows)
            _compare(reference, rows, edges, file.architecture)
    except ExportError:
        raise
    except EdgeAgentError as error:
        raise ExportError(
            f"llama.cpp stages cannot run the architecture {file.architecture}: {error.what}",
            where=path,
            hint=error.hint if isinstance(error, CapacityError) else _OTHER,
        ) from error
    progress(what, total, total)
    return {"rows": sum(_LENGTHS)}


class _Checker:
    """Runs sequences through stages, one stage after the other in memory and on disk."""

    def __init__(self, folder: Path, model: ModelFacts) -> None:
        self._folder, self._facts = folder, model

    def rows(
        self, model: GgufMetadata, first: int, end: int, values: Sequence[NDArray[Any]]
    ) -> list[NDArray[np.float32]]:
        """What the stage of layers [first, end) makes of the rows of each sequence."""
        path = self._folder / "stage.gguf"
        spans = spans_of(model).of_stage(first, end)
        stage_file.write(stage_file.lay_out(model, first, end), self._folder / TENSORS, spans, path)
        try:
            return self.rows_of_file(path, first, end, values)
        finally:
            path.unlink()

    def rows_of_file(
        self, path: Path, first: int, end: int, values: Sequence[NDArray[Any]]
    ) -> list[NDArray[np.float32]]:
        """The same with a file that is there."""
        config = StageConfig(
            package=self._folder,
            first_layer=first,
            end_layer=end,
            engine="llamacpp",
            mode="exact",
            kv_tokens=_KV_TOKENS,
        )
        stage = LlamaCppRuntime(path, config, self._facts)
        try:
            return stepped(stage, values)
        finally:
            stage.close()


def _compare(
    whole: Sequence[NDArray[Any]], staged: Sequence[NDArray[Any]], edges: Sequence[int], architecture: str
) -> None:
    largest = float(np.max([np.abs(want - got).max() for want, got in zip(whole, staged, strict=True)]))
    if largest != 0:  # NaN, too
        raise ExportError(
            f"llama.cpp stages of the architecture {architecture} differ from the whole model when it is cut behind"
            f" layer {edges[1] - 1}: the largest difference of a logit is {largest:.3g}, it must be 0",
            where="llama.cpp backend",
            hint=_OTHER,
        )


def _shortened(model: GgufMetadata) -> GgufMetadata | None:
    """The model with a sliding window of a few tokens; None if it has no window."""
    key = f"{model.architecture}.attention.sliding_window"
    if not any(entry.key == key and entry.value for entry in model.entries):
        return None
    entries = tuple(
        entry.model_copy(update={"value": _WINDOW}) if entry.key == key else entry for entry in model.entries
    )
    return model.model_copy(update={"entries": entries})
