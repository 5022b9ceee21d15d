"""The OpenAI API's answer objects, made by hand: they are written once a token, and never read back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent.service import Piece
from pipeline.messages import Token, Usage

Json = dict[str, Any]
TokenBytes = Callable[[int], bytes]
"""What a token id stands for; on its own it may be a part of a character."""

_IMPOSSIBLE = -9999.0


@dataclass
class Reply:
    """What both endpoints' answers have in common."""

    id: str
    model: str
    fingerprint: str
    token_bytes: TokenBytes
    logprobs: bool
    usage_asked: bool
    per_prompt: int
    """Choices of each prompt."""
    service_tier: str | None = None
    """What it is served as; None: nothing is said of it."""
    created: int = field(default_factory=lambda: int(time.time()))

    def opening(self, choice: int) -> Json | None:
        """The event that opens a streamed answer before there is anything of it."""
        return None

    def chunks(self, piece: Piece) -> list[Json]:
        """Streamed events: what is new, if there is something to say, and the end in an event of its own."""
        said = []
        if piece.text or (piece.tokens and self.logprobs):
            said.append(self._chunk(piece.choice, piece.text, piece.tokens, None))
        if piece.finish is not None:
            said.append(self._chunk(piece.choice, "", (), piece.finish))
        return said

    def whole(self, choices: list[list[Piece]], timings: Json) -> Json:
        """The answer in one: the pieces of each choice."""
        raise NotImplementedError

    def usage_chunk(self, usages: list[Usage], timings: Json) -> Json:
        """The last streamed event where usage was asked for: no choice, the counts of all."""
        raise NotImplementedError

    def _counts(self, choices: list[list[Piece]], timings: Json) -> Json:
        usages = [piece.usage for pieces in choices for piece in pieces if piece.usage]
        return {"usage": self._usage(usages), "timings": timings}

    def _usage(self, usages: list[Usage]) -> Json:
        """Token counts; a prompt that several choices share counts once."""
        prompt = sum(usage.prompt for usage in usages[:: self.per_prompt])
        completion = sum(usage.completion for usage in usages)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(usage.cached for usage in usages[:: self.per_prompt])},
        }

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            **({} if self.service_tier is None else {"service_tier": self.service_tier}),
            "choices": choices,
        }

    def _chunk(self, choice: int, text: str, tokens: tuple[Token, ...], finish: str | None) -> Json:
        raise NotImplementedError

    def _streamed(self, kind: str, choice: Json) -> Json:
        chunk = self._envelope(kind, [choice])
        if self.usage_asked:
            chunk["usage"] = None
        return chunk


class ChatReply(Reply):
    """Answers of /v1/chat/completions."""

    def opening(self, choice: int) -> Json | None:
        """The assistant's role, sent before the first token is there."""
        return self._delta(choice, {"role": "assistant", "content": "", "refusal": None}, None, None)

    def usage_chunk(self, usages: list[Usage], timings: Json) -> Json:
        """Token counts, and no choice."""
        return self._envelope("chat.completion.chunk", []) | {"usage": self._usage(usages), "timings": timings}

    def whole(self, choices: list[list[Piece]], timings: Json) -> Json:
        """A chat.completion."""
        said = []
        for index, pieces in enumerate(choices):
            text, tokens = _joined(pieces)
            message = {"role": "assistant", "content": text, "refusal": None}
            logprobs = self._logprobs(tokens, always=True)
            finish = pieces[-1].finish
            said.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish})
        return self._envelope("chat.completion", said) | self._counts(choices, timings)

    def _chunk(self, choice: int, text: str, tokens: tuple[Token, ...], finish: str | None) -> Json:
        return self._delta(choice, {} if finish else {"content": text}, self._logprobs(tokens), finish)

    def _delta(self, choice: int, delta: Json, logprobs: Json | None, finish: str | None) -> Json:
        return self._streamed(
            "chat.completion.chunk",
            {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish},
        )

    def _logprobs(self, tokens: tuple[Token, ...], *, always: bool = False) -> Json | None:
        if not self.logprobs or not (tokens or always):
            return None
        return {"content": [self._logprob(token) for token in tokens], "refusal": None}

    def _logprob(self, token: Token) -> Json:
        chosen = self._entry(token.token, token.logprob)
        return {**chosen, "top_logprobs": [self._entry(other, logprob) for other, logprob in token.top]}

    def _entry(self, token: int, logprob: float | None) -> Json:
        raw = self.token_bytes(token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(raw)}


@dataclass
class CompletionReply(Reply):
    """Answers of /v1/completions."""

    offsets: dict[int, int] = field(default_factory=dict)
    """Characters of each choice that have been told of."""

    def usage_chunk(self, usages: list[Usage], timings: Json) -> Json:
        """Token counts, and no choice."""
        return self._envelope("text_completion", []) | {"usage": self._usage(usages), "timings": timings}

    def whole(self, choices: list[list[Piece]], timings: Json) -> Json:
        """A text_completion."""
        said = [self._choice(index, *_joined(pieces), pieces[-1].finish) for index, pieces in enumerate(choices)]
        return self._envelope("text_completion", said) | self._counts(choices, timings)

    def _chunk(self, choice: int, text: str, tokens: tuple[Token, ...], finish: str | None) -> Json:
        return self._streamed("text_completion", self._choice(choice, text, tokens, finish))

    def _choice(self, index: int, text: str, tokens: tuple[Token, ...], finish: str | None) -> Json:
        return {"text": text, "index": index, "logprobs": self._logprobs(index, tokens), "finish_reason": finish}

    def _logprobs(self, index: int, tokens: tuple[Token, ...]) -> Json | None:
        if not self.logprobs:
            return None
        names = [self._name(token.token) for token in tokens]
        offsets, offset = [], self.offsets.get(index, 0)
        for name in names:
            offsets.append(offset)
            offset += len(name)
        self.offsets[index] = offset
        return {
            "tokens": names,
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [{self._name(other): _finite(logprob) for other, logprob in token.top} for token in tokens],
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        raw = self.token_bytes(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _joined(pieces: list[Piece]) -> tuple[str, tuple[Token, ...]]:
    """Text and tokens of an answer."""
    return "".join(piece.text for piece in pieces), tuple(token for piece in pieces for token in piece.tokens)


def _finite(logprob: float | None) -> float:
    """JSON has no infinity; for what is impossible the API says -9999."""
    return max(logprob, _IMPOSSIBLE) if logprob is not None else _IMPOSSIBLE
