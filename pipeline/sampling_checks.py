"""What a request may ask of the sampler."""

from __future__ import annotations

import math

from pipeline.messages import Sampling
from shards.errors import RequestError

MOST_LOGPROBS = 20


def validate(sampling: Sampling, vocabulary: int) -> None:
    """Check every field against its range; `vocabulary` is the width of the logits.

    Raises:
        RequestError: names the first field out of range, its value and the range.
    """
    _between("temperature", sampling.temperature, 0.0, 100.0)
    _between("top_k", sampling.top_k, 0, None)
    _between("top_p", sampling.top_p, 0.0, 1.0, above_low=True)
    _between("min_p", sampling.min_p, 0.0, 1.0)
    _between("repetition_penalty", sampling.repetition_penalty, 0.0, 100.0, above_low=True)
    _between("presence_penalty", sampling.presence_penalty, -2.0, 2.0)
    _between("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0)
    if sampling.logprobs is not None:
        _between("logprobs", sampling.logprobs, 0, MOST_LOGPROBS)
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < vocabulary:
            raise RequestError(
                f"token id {token} does not exist: this model has ids 0 to {vocabulary - 1}",
                where="logit_bias",
                hint="Use ids of this model's tokenizer.",
            )
        _between(f"logit_bias[{token}]", bias, -100.0, 100.0)


def _between(field: str, value: float, low: float, high: float | None, *, above_low: bool = False) -> None:
    if math.isfinite(value) and (value > low if above_low else value >= low) and (high is None or value <= high):
        return
    bounds = f"{'above' if above_low else 'at least'} {low:g}" + ("" if high is None else f" and at most {high:g}")
    raise RequestError(
        f"the value {value} is out of range, it must be {bounds}", where=field, hint=f"Change {field} and ask again."
    )
