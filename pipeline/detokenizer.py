"""Token ids to text as they come, without ever splitting a character.

A table made at load gives each token's bytes, so that a token costs a look-up and an incremental UTF-8 decoder. Where a
tokenizer's output is not the tokens' bytes joined (some treat the end of a text specially), each token decodes the
whole answer again: slower, and right as long as later tokens don't change earlier text.

The interface follows the streaming detokenizers of mlx-lm.
"""

from __future__ import annotations

import codecs
from typing import Protocol

import numpy as np

from pipeline.tokenizer import Tokenizer

_CHECKED_SEQUENCES, _CHECKED_LENGTH = 64, 48


class StreamingDetokenizer(Protocol):
    """One answer's tokens becoming text."""

    def add(self, token: int) -> str:
        """The text that became certain with this token; often empty inside a character."""
        ...

    def finish(self) -> str:
        """The rest: U+FFFD for a character that never became whole. Nothing may be added afterwards."""
        ...


class Detokenizer:
    """What all answers share: the bytes of every token.

    Args:
        tokenizer: Of the model.
        vocabulary: Width of the logits; ids the tokenizer lacks have no text.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        ids = np.arange(vocabulary)
        alone = tokenizer.decode_bytes(ids[:, None])
        neutral = self._neutral(alone)
        self._names = tokenizer.decode_bytes(ids[:, None], skip_special=False)
        self._bytes = alone
        self._first: dict[int, bytes] = {}
        self.is_table = False
        if neutral is None:
            return
        prefix = alone[neutral]
        followed = tokenizer.decode_bytes(np.stack((np.full_like(ids, neutral), ids), axis=1))
        if all(text.startswith(prefix) for text in followed):
            self._bytes = [text[len(prefix) :] for text in followed]
            self._first = {i: a for i, (a, b) in enumerate(zip(alone, self._bytes, strict=True)) if a != b}
            self.is_table = self._agrees(vocabulary)

    def stream(self, *, continues: bool = False) -> StreamingDetokenizer:
        """Begin an answer.

        Args:
            continues: The text goes on from an earlier one: a space that a tokenizer drops at the start of a text
                (sentencepiece) stays.
        """
        if self.is_table:
            return _TableStream(self._bytes, {} if continues else self._first)
        return _WholeStream(self._tokenizer)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token inside a text; a special token's are its name, such as <|im_end|>."""
        return self._bytes[token] or self._names[token]

    def _neutral(self, alone: list[bytes]) -> int | None:
        """A token that is one letter wherever it stands: what follows it is not at the start of a text."""
        letters = [i for i, text in enumerate(alone) if len(text) == 1 and text.isalpha()]
        for token, text in zip(letters, self._tokenizer.decode_bytes([[i, i] for i in letters]), strict=True):
            if text == alone[token] * 2:
                return token
        return None

    def _agrees(self, vocabulary: int) -> bool:
        """Whether joining the table gives what the tokenizer gives, on random tokens and on the shortest ones."""
        random = np.random.default_rng(0)
        shape = (_CHECKED_SEQUENCES, _CHECKED_LENGTH)
        short = np.array([i for i, text in enumerate(self._bytes) if len(text) <= 2])
        for ids in (random.integers(vocabulary, size=shape), random.choice(short, shape)):
            for sequence, whole in zip(ids.tolist(), self._tokenizer.decode_bytes(ids), strict=True):
                stream = _TableStream(self._bytes, self._first)
                if "".join(map(stream.add, sequence)) + stream.finish() != whole.decode("utf-8", "replace"):
                    return False
        return True


class _TableStream:
    def __init__(self, table: list[bytes], first: dict[int, bytes]) -> None:
        self._table, self._first = table, first
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        data = self._table[token]
        if self._first and data:
            data, self._first = self._first.get(token, data), {}
        return self._decoder.decode(data)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WholeStream:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._given = 0

    def add(self, token: int) -> str:
        self._tokens.append(token)
        return self._new(final=False)

    def finish(self) -> str:
        return self._new(final=True)

    def _new(self, *, final: bool) -> str:
        data = self._tokenizer.decode_bytes([self._tokens])[0]
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(data, final)
        new, self._given = text[self._given :], max(self._given, len(text))
        return new
