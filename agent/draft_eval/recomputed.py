"""Whether a recording's hidden states are those its tokens were sampled from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agent.capture.capture_file import Captured
from pipeline.messages import Open
from pipeline.sampler import Sampler
from pipeline.speculation import same_tokenizer
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests
from shards.errors import ConfigurationError
from shards.progress import Progress
from shards.runtime import SequenceRows
from shards.store import PackageStore

_ROWS = 128
"""Of an inference: bounds the memory of the logits."""


def check_packages(captured: Captured, target: Path, drafts: Sequence[Path]) -> None:
    """See that a package is that of the recorded model, and that drafts have its tokenizer.

    Raises:
        ConfigurationError: it is another one, the recording contradicts it, or a draft has another tokenizer.
        PackageError: a package cannot be read.
    """
    manifest = manifests.read(target)
    if manifest.package_id != captured.header.package_id:
        raise ConfigurationError(
            f"the recording is of {captured.header.model} ({captured.header.package_id[:16]}), this package is"
            f" {manifest.facts.name} ({manifest.package_id[:16]})",
            where=str(target),
            hint="Give the package that was served while it was made.",
        )
    header, facts = captured.header, manifest.facts
    if (header.vocabulary, header.hidden_size) != (facts.vocabulary, facts.hidden_size):
        raise ConfigurationError(
            f"the recording says it is of {header.vocabulary} token ids and hidden states of {header.hidden_size}, this"
            f" package has {facts.vocabulary} and {facts.hidden_size}",
            where=str(target),
            hint="Record again.",
        )
    tokenizer = Tokenizer.load(target)
    for draft in drafts:
        same_tokenizer.check(target, manifest, tokenizer, draft, manifests.read(draft))


def sampled_again(captured: Captured, target: Path, progress: Progress) -> float:
    """Share of the recorded tokens (0..1) that final norm, head and sampler make of their hidden states, in f32.

    In exact mode that is all of them; a model that was served in fast mode has rounded otherwise.

    Raises:
        PackageError, GraphError, StageError: the head of the package cannot be loaded.
    """
    import openvino as ov

    from shards.device import compile_stage, properties
    from shards.graph import cut_head
    from shards.loading import read_graph

    core, store = ov.Core(), PackageStore(target)
    head = compile_stage(core, cut_head(read_graph(core, store)), "CPU", properties("CPU", "exact"))
    sampler = Sampler(captured.header.vocabulary)
    same = done = 0
    for text in captured.texts:
        progress("computing the head again", done, captured.rows)
        before = [*text.prompt]
        for start in range(0, len(text.tokens), _ROWS):
            logits = head(text.hidden[None, start : start + _ROWS])[0][0]
            for row, token in zip(logits, text.tokens[start : start + _ROWS].tolist(), strict=True):
                history = tuple(before) if text.sampling.needs_history else ()
                sampler.open(Open(0, text.sampling, history, min(len(text.prompt), len(history))))
                (drawn,) = sampler.sample([SequenceRows(0, len(before) - 1, 1, 1)], np.asarray(row)[None])
                same += drawn.token == token
                before.append(token)
        done += len(text.tokens)
    return same / max(done, 1)
