"""Hidden states with the tokens: on the wire, and of the right rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_limits import LIMITS

from pipeline import wire
from pipeline.messages import SequenceRows, StepResult, Token
from pipeline.tail_capture import TailCapture
from shards.errors import ConfigurationError, WireError

PLAIN = LIMITS.model_copy(update={"payload": "tokens"})
CAPTURING = PLAIN.model_copy(update={"captures": True})


def result(tokens: int, hidden: int) -> StepResult:
    rows = np.arange(4 * tokens, dtype=np.float32).reshape(tokens, 4)
    return StepResult(7, tuple(Token(i, 5, 9, hidden=rows[i] if i < hidden else None) for i in range(tokens)))


@pytest.mark.parametrize("tokens", [1, 3])
def test_hidden_states_come_with_their_tokens(tokens: int) -> None:
    parts = wire.encode_result(result(tokens, tokens), 3)
    assert len(parts) == 2
    read = wire.decode_result([bytes(part) for part in parts], CAPTURING)
    for token, wanted in zip(read.tokens, result(tokens, tokens).tokens, strict=True):
        assert token == wanted
        assert token.hidden is not None
        assert wanted.hidden is not None
        assert np.array_equal(token.hidden, wanted.hidden)


@pytest.mark.parametrize(("tokens", "hidden"), [(0, 0), (2, 0), (2, 1)])
def test_without_a_hidden_state_for_each_token_there_is_one_part(tokens: int, hidden: int) -> None:
    parts = wire.encode_result(result(tokens, hidden), 3)
    assert len(parts) == 1
    for limits in (PLAIN, CAPTURING):
        read = wire.decode_result([bytes(part) for part in parts], limits)
        assert all(token.hidden is None for token in read.tokens)


def test_hidden_states_nobody_asked_for_are_refused() -> None:
    parts = [bytes(part) for part in wire.encode_result(result(2, 2), 3)]
    with pytest.raises(WireError, match="wanted 1 part, got 2"):
        wire.decode_result(parts, PLAIN)
    for wrong in (parts[1][:-1], parts[1] * 2, b""):
        with pytest.raises(WireError, match="wanted 32 bytes"):
            wire.decode_result([parts[0], wrong], CAPTURING)


def test_parts_may_be_as_large_as_hidden_states_of_a_full_step() -> None:
    wide = {"hidden_size": 2**14, "max_rows": 2**10}
    assert PLAIN.model_copy(update=wide).part_bytes < 2**26
    assert CAPTURING.model_copy(update=wide).part_bytes >= 2**26


def stage(rows: int) -> Any:
    return SimpleNamespace(hidden_rows=np.arange(rows, dtype=np.float32)[:, None] * [1, 10])


def test_each_token_has_the_state_of_its_own_row() -> None:
    """A sequence without sampled rows, one whose second guess was wrong, one with a prompt before its row."""
    rows = (SequenceRows(4, 0, 6, 0), SequenceRows(1, 10, 4, 4), SequenceRows(2, 0, 9, 1))
    tokens = [Token(1, 11, 50), Token(1, 12, 51), Token(2, 9, 60)]
    capture, engine = TailCapture(), stage(5)
    capture.attach(engine)
    assert all(token.hidden is None for token in capture.given_to(tokens, rows))
    capture.on = True
    given = capture.given_to(tokens, rows)
    assert given == tuple(tokens)
    engine.hidden_rows[:] = -1  # engines reuse their memory
    assert [token.hidden.tolist() for token in given if token.hidden is not None] == [[0, 0], [1, 10], [4, 40]]
    capture.on = False
    assert all(token.hidden is None for token in capture.given_to(tokens, rows))


def test_an_engine_that_gives_none_is_refused() -> None:
    bare: Any = SimpleNamespace(facts=SimpleNamespace(engine="other"))
    with pytest.raises(ConfigurationError, match="the engine other does not give hidden states"):
        TailCapture().attach(bare)
