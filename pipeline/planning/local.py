"""How large a KV cache the stages of one PC can have. Pure."""

from __future__ import annotations

from pipeline.planning.amounts import amount
from pipeline.planning.plan import ModelSize
from pipeline.planning.room import KV_BLOCK, Reserve, kv_tokens
from shards.errors import CapacityError


def local_kv_tokens(
    size: ModelSize,
    stages: int,
    users: int,
    context: int,
    memory: int,
    reserve: Reserve = Reserve(),  # noqa: B008 (immutable)
) -> int:
    """Tokens of KV cache for so many users with so much context each, or as many as fit.

    Args:
        size: Of the model.
        stages: How many it is divided over, all in the same memory.
        users: Answers at the same time.
        context: Tokens of each.
        memory: Bytes for all stages together.
        reserve: What an engine needs besides, for each stage.

    Raises:
        CapacityError: not even one block of it fits beside the weights.
    """
    weights = size.embedding + sum(size.layers) + size.head + stages * size.shared + (stages - 1) * reserve.bytes
    token = len(size.layers) * size.kv_token
    fits = max(0, reserve.usable(memory) - weights) // (token * KV_BLOCK) * KV_BLOCK
    if not fits:
        raise CapacityError(
            f"the model needs {amount(reserve.needed(weights + token * KV_BLOCK))} of memory with a KV cache of "
            f"{KV_BLOCK} tokens, {amount(memory)} are free",
            hint="Close other programs, have other PCs join (without --local-stages), or give --kv-tokens to try all "
            "the same.",
        )
    return min(kv_tokens(users, context), fits)
