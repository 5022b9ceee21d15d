"""How far a model with changed weights agrees with the original, on a text of several kinds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shards.errors import ExportError
from shards.progress import Progress, silent

_EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "CACHE_DIR": "",
}
"""Nothing but the weights may differ."""

_CHUNK = 64
"""Rows in one inference: bounds the memory of the logits."""

TEXT = """\
The tide had gone out further than anyone in the village could remember. Boats lay on their sides in the mud, and \
children walked between them with buckets, picking up crabs and old coins. "It will come back," said the harbour \
master, "and when it does, you had better be on the hill." Nobody listened to her until the birds fell silent.

To bake a simple loaf of bread:
1. Mix 500 g of flour with 10 g of salt and 7 g of dry yeast.
2. Add 350 ml of warm water and knead the dough for ten minutes.
3. Let it rest for an hour, shape it, and bake it at 220 degrees for about 35 minutes.

def mean_and_variance(values: list[float]) -> tuple[float, float]:
    \"\"\"Return the mean and the population variance of some numbers.\"\"\"
    if not values:
        raise ValueError("at least one number is needed")
    mean = sum(values) / len(values)
    return mean, sum((value - mean) ** 2 for value in values) / len(values)

Question: A train leaves at 14:20 and arrives at 17:05. How long does the journey take?
Answer: From 14:20 to 17:00 it is two hours and forty minutes, and five more minutes make two hours and 45 minutes.

Le marché ouvre à sept heures du matin. On y trouve des fruits, du fromage, du pain frais et des fleurs. Ma \
grand-mère y va chaque samedi avec son panier, et elle revient toujours avec une histoire de plus à raconter.

Water boils at a lower temperature in the mountains because the air pressure falls as one climbs. The capital of \
Japan is Tokyo, the largest planet of the solar system is Jupiter, and the chemical symbol of gold is Au.
"""
"""What the models are compared on: prose, a list, code, a sum, another language, facts."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How alike two models are."""

    tokens: int
    """Positions compared."""
    top1: float
    """Share of positions where both find the same token likeliest (0..1)."""
    divergence: float
    """Mean Kullback-Leibler divergence of the changed model from the original, in nats a token."""

    def summary(self) -> dict[str, float]:
        """For people and JSON."""
        return {
            "same_top_token": round(self.top1, 4),
            "kl_divergence_nats": round(self.divergence, 5),
            "tokens_compared": self.tokens,
        }


def compare(original: Path, changed: Path, tokens: NDArray[np.int64], progress: Progress = silent) -> Agreement:
    """Run two stateful graphs over the same tokens on the CPU and compare what they predict.

    One model is in memory at a time, besides the original's logits (tokens x vocabulary x 4 bytes).

    Args:
        original: The graph (.xml) that is right.
        changed: The graph with other weights.
        tokens: Token ids, shape [tokens].
        progress: Told in tokens run.

    Raises:
        ExportError: a token is not in the vocabulary of a graph.
    """
    total = 2 * len(tokens)
    wanted = np.concatenate(list(_logits(original, tokens, 0, total, progress)))
    same, divergence, start = 0, 0.0, 0
    for got in _logits(changed, tokens, len(tokens), total, progress):
        right = wanted[start : start + len(got)]
        same += int((got.argmax(-1) == right.argmax(-1)).sum())
        divergence += float(_divergence(right, got).sum())
        start += len(got)
    return Agreement(len(tokens), same / len(tokens), divergence / len(tokens))


def tokenise(tokenizer: Path, text: str = TEXT) -> NDArray[np.int64]:
    """Token ids of a text by a tokenizer graph, shape [tokens]."""
    return next(tokenise_all(tokenizer, [text]))


def tokenise_all(tokenizer: Path, texts: Iterable[str]) -> Iterator[NDArray[np.int64]]:
    """Token ids of each text by a tokenizer graph, shape [tokens]."""
    import openvino as ov
    import openvino_tokenizers  # noqa: F401  (registers the operations)

    compiled = ov.Core().compile_model(tokenizer, "CPU")
    for text in texts:
        yield np.array(compiled([text])["input_ids"][0], np.int64)


def _logits(
    graph: Path, tokens: NDArray[np.int64], done: int, total: int, progress: Progress
) -> Iterator[NDArray[np.float32]]:
    """The logits of a graph over `tokens`, chunk by chunk, shape [rows, vocabulary]."""
    import openvino as ov

    core = ov.Core()
    model = core.read_model(graph)
    names = {name for port in model.inputs for name in port.names}
    vocabulary = model.output(0).get_partial_shape()[2].get_length()
    if tokens.max() >= vocabulary:
        raise ExportError(
            f"the tokenizer made token {tokens.max()}, the model knows {vocabulary} tokens",
            where=str(graph),
            hint="The tokenizer belongs to another model.",
        )
    progress(_WHAT, done, total)
    request = core.compile_model(model, "CPU", _EXACT).create_infer_request()
    for start in range(0, len(tokens), _CHUNK):
        rows = tokens[None, start : start + _CHUNK]
        end = start + rows.shape[1]
        feed: dict[str, NDArray[Any]] = {
            "input_ids": rows,
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(start, end, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        request.infer({name: value for name, value in feed.items() if name in names})
        progress(_WHAT, done + end, total)
        yield request.get_output_tensor(0).data[0].copy()


_WHAT = "comparing with the original weights"


def _divergence(right: NDArray[np.float32], got: NDArray[np.float32]) -> NDArray[np.float64]:
    """Kullback-Leibler divergence of each row's distribution from the right one, from logits."""
    log_right, log_got = _log_softmax(right), _log_softmax(got)
    return (np.exp(log_right) * (log_right - log_got)).sum(-1)  # type: ignore[no-any-return]


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))  # type: ignore[no-any-return]
