"""What a request may ask of the sampler."""

from __future__ import annotations

from pipeline.messages import Sampling
from pipeline.wire import MAX_LOGIT_BIAS, MAX_TOP
from shards.errors import RequestError


def validate(sampling: Sampling, vocabulary: int) -> None:
    """Check every field against its range; `vocabulary` is the width of the logits.

    Raises:
        RequestError: names the first field out of range, its value and the range.
    """
    _between("temperature", sampling.temperature, 0, 100)
    _between("top_k", sampling.top_k, 0, 2**31 - 1)
    _between("top_p", sampling.top_p, 0, 1, above_low=True)
    _between("min_p", sampling.min_p, 0, 1)
    _between("repetition_penalty", sampling.repetition_penalty, 0.01, 100)
    _between("presence_penalty", sampling.presence_penalty, -2, 2)
    _between("frequency_penalty", sampling.frequency_penalty, -2, 2)
    _between("seed", sampling.seed, -(2**63), 2**64 - 1)
    if sampling.logprobs is not None:
        _between("logprobs", sampling.logprobs, 0, MAX_TOP)
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS:
        raise RequestError(
            f"{len(sampling.logit_bias)} entries are given, at most {MAX_LOGIT_BIAS} can be",
            where="logit_bias",
            hint="Give those that matter most.",
        )
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < vocabulary:
            raise RequestError(
                f"token id {token} does not exist: this model has ids 0 to {vocabulary - 1}",
                where="logit_bias",
                hint="Use ids of this model's tokenizer.",
            )
        _between(f"logit_bias[{token}]", bias, -100, 100)


def _between(field: str, value: float, low: float, high: float, *, above_low: bool = False) -> None:
    if (value > low if above_low else value >= low) and value <= high:  # NaN is neither
        return
    bounds = f"{'above' if above_low else 'at least'} {low} and at most {high}"
    raise RequestError(
        f"the value {value} is out of range, it must be {bounds}", where=field, hint=f"Change {field} and ask again."
    )
