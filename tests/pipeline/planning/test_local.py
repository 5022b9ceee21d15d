from __future__ import annotations

import pytest

from pipeline.planning.local import local_kv_tokens
from pipeline.planning.plan import ModelSize
from pipeline.planning.room import Reserve
from shards.errors import CapacityError

SIZE = ModelSize(
    layers=(100,) * 10, embedding=50, head=70, shared=5, kv_token=2, hidden_size=8, vocabulary=100
)  # 1120 bytes of weights, 20 bytes a token
RESERVE = Reserve(share=0.0, bytes=1000)
LEAST = 1120 + 5 + 1000 + 256 * 20


def tokens(memory: int, stages: int = 1, users: int = 4, context: int = 1024) -> int:
    return local_kv_tokens(SIZE, stages, users, context, memory, RESERVE)


def test_users_and_context_are_what_is_wanted_in_whole_blocks() -> None:
    assert tokens(10**9) == 4096
    assert tokens(10**9, users=3, context=1000) == 3072
    assert tokens(10**9, users=1, context=1) == 256


def test_less_where_memory_holds_less() -> None:
    assert [tokens(LEAST + more) for more in (0, 256 * 20 - 1, 256 * 20, 10 * 256 * 20)] == [256, 256, 512, 2816]
    assert tokens(LEAST + 5 + 1000, stages=2) == 256  # another stage has buffers of its own, and what all share


def test_no_room_for_a_block_names_both_amounts() -> None:
    with pytest.raises(CapacityError, match=r"needs 0 MB of memory with a KV cache of 256 tokens, 0 MB are free") as no:
        tokens(LEAST - 1)
    assert "--kv-tokens" in str(no.value)
    with pytest.raises(CapacityError, match=r"12\.00 GB of memory .*, 1\.00 GB are free"):
        local_kv_tokens(SIZE.model_copy(update={"head": 12 * 10**9 - 7175}), 1, 1, 1, 10**9, RESERVE)
