"""Frames on the wire: how a step travels down a chain, and how its result returns to the head.

A step frame has two parts, `[header, payload]`, or its payload in the header where it is small: each part costs some
time of its own on every leg. A result frame has the header alone, or while somebody records also the f32 hidden states
of its tokens. A header is a msgpack array, protocol version and epoch first, so that any version
can refuse any other by name:

    step    [version, epoch, number, operations, rows, payload kind, payload shape, timings, error, echo, verifies,
             payload or nil]
    result  [version, epoch, number, tokens, timings, error]

Decoding trusts nothing: every field's type, sign and bound, and the payload's exact length, are checked against what
the plan allows before the payload is looked at. Whatever is off is a WireError that names the field, what was wanted
and what came.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgpack
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pipeline import fields, payload
from pipeline.messages import (
    NOT_YET,
    Fork,
    Free,
    Open,
    Operation,
    Sampling,
    SequenceRows,
    StageTiming,
    StepResult,
    Token,
    Verify,
)
from pipeline.payload import PayloadKind, Rows
from shards.errors import WireError

PROTOCOL = 4
"""Version of the frames; both ends of a link must have the same."""

MAX_LOGIT_BIAS = 1024
"""Entries of a sampling's logit bias."""

MAX_STAGES = 64
MAX_TOP = 20
"""Likeliest tokens reported beside a sampled one."""

_MAX_ERROR = 2000
"""Characters of an error's text; longer ones are cut by the sender."""

_SMALL_PAYLOAD = 65536
"""Bytes up to which a payload goes into the header."""
_MAX_HEADER = 16 * 2**20
_PACKER_BYTES = 4096
_MAX_NUMBER = 2**63 - 1


class Limits(BaseModel):
    """What the plan allows a frame to hold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epoch: int = Field(ge=0)
    payload: PayloadKind = Field(description="what arrives on the link")
    hidden_size: int = Field(gt=0)
    vocabulary: int = Field(gt=0)
    kv_tokens: int = Field(gt=0, description="tokens the smallest KV cache of the chain holds")
    max_rows: int = Field(gt=0, description="rows of a step")
    max_sequences: int = Field(gt=0, description="sequences of a step, and Opens of a step")
    max_operations: int = Field(gt=0)
    captures: bool = Field(False, description="whether results may bring hidden states")

    @cached_property
    def header_bytes(self) -> int:
        """Largest header. Bounded by what a step may say, because parsing costs many times the header's memory."""
        opens = self.max_sequences * (4 * self.kv_tokens + 16 * MAX_LOGIT_BIAS)
        return min(_SMALL_PAYLOAD + 65536 + 64 * (self.max_rows + self.max_operations) + opens, _MAX_HEADER)

    @property
    def part_bytes(self) -> int:
        """Largest part of a message; the socket refuses larger ones before they are received."""
        hidden = payload.size("f32", self.max_rows, self.hidden_size) if self.captures else 0
        return max(self.header_bytes, payload.size(self.payload, self.max_rows, self.hidden_size), hidden)


@dataclass(frozen=True, slots=True)
class Frame:
    """A step between two stages.

    `x` is what the receiving stage reads: int32 token ids [rows] or float32 hidden states [rows, hidden size]. With
    an `error` (of the first stage that failed) there are no rows left, but the operations still hold.
    """

    number: int
    operations: tuple[Operation, ...]
    rows: tuple[SequenceRows, ...]
    x: Rows
    timings: tuple[StageTiming, ...] = ()
    error: str | None = None
    echo: bool = False
    verifies: tuple[Verify, ...] = ()


def without(frame: Frame, sequences: Collection[int]) -> Frame:
    """The frame without the rows of these sequences; what it says of others is the same."""
    kept = np.repeat([r.sequence not in sequences for r in frame.rows], [r.count for r in frame.rows])
    return replace(
        frame,
        rows=tuple(r for r in frame.rows if r.sequence not in sequences),
        x=frame.x[kept],
        verifies=tuple(v for v in frame.verifies if v.sequence not in sequences),
    )


def encode(frame: Frame, epoch: int, kind: PayloadKind) -> list[bytes | memoryview]:
    """The parts of a step frame. The payload may be the memory of `frame.x` itself (see payload.encode)."""
    rows = [(r.sequence, r.past, r.count, r.sample) for r in frame.rows]
    operations = [_packed_operation(operation) for operation in frame.operations]
    header = [PROTOCOL, epoch, frame.number, operations, rows, kind, frame.x.shape]
    verifies = [(v.sequence, v.branch, np.array(v.tokens, "<i4").tobytes()) for v in frame.verifies]
    data = payload.encode(kind, frame.x)
    is_small = data.nbytes <= _SMALL_PAYLOAD
    header += [*_packed_end(frame), frame.echo, verifies, data if is_small else None]
    return [_packed(header)] if is_small else [_packed(header), data]


def decode(parts: Sequence[bytes], limits: Limits) -> Frame:
    """Check and read a step frame.

    Raises:
        WireError: it is not a frame the plan allows; names the field, what was wanted and what came.
    """
    number, operations, rows, kind, shape, timings, error, echo, verifies, data = _fields(parts, (1, 2), 12, limits)
    if len(parts) == 2:
        if data is not None:
            fields.refuse("no payload in the header beside one of its own", data, "payload")
        data = parts[1]
    elif type(data) is not bytes:
        fields.refuse("a payload", data, "payload")
    read_rows = _rows(rows, limits)
    total = sum(r.count for r in read_rows)
    if total > limits.max_rows:
        fields.refuse(f"at most {limits.max_rows} rows", total, "rows")
    if type(echo) is not bool:
        fields.refuse("true or false", echo, "echo")
    if kind != limits.payload:
        fields.refuse(repr(limits.payload), kind, "payload kind")
    wanted = payload.shape(limits.payload, total, limits.hidden_size)
    if type(shape) is not list or tuple(shape) != wanted:
        fields.refuse(f"shape {list(wanted)} (the counts' sum first)", shape, "payload shape")
    size = payload.size(limits.payload, total, limits.hidden_size)
    if len(data) != size:
        fields.refuse(f"{size} bytes", len(data), "payload")
    read_error = _error(error)
    if read_error is not None and read_rows:
        fields.refuse("no rows beside an error", len(read_rows), "rows")
    frame = Frame(
        fields.integer(number, 0, _MAX_NUMBER, "number"),
        () if operations == [] else _operations(operations, limits),
        read_rows,
        payload.decode(limits.payload, data, total, limits.hidden_size),
        () if timings == [] else _timings(timings),
        read_error,
        echo,
        _verifies(verifies, read_rows, limits) if verifies else (),
    )
    if limits.payload == "tokens":
        _check_tokens(frame.x.tolist(), read_rows, limits)
    return frame


def encode_result(result: StepResult, epoch: int) -> list[bytes | memoryview]:
    """The parts of a result frame: one, and another where every token has its hidden state."""
    tokens = [(t.sequence, t.position, t.token, t.logprob, t.top) for t in result.tokens]
    header = _packed([PROTOCOL, epoch, result.number, tokens, *_packed_end(result)])
    hidden = [t.hidden for t in result.tokens if t.hidden is not None]
    if not hidden or len(hidden) != len(tokens):
        return [header]
    return [header, payload.encode("f32", np.stack(hidden))]


def decode_result(parts: Sequence[bytes], limits: Limits) -> StepResult:
    """Check and read a result frame.

    Raises:
        WireError: it is not a frame the plan allows; names the field, what was wanted and what came.
    """
    has_hidden = limits.captures and len(parts) == 2
    number, tokens, timings, error = _fields(parts, (2,) if has_hidden else (1,), 6, limits)
    read = tuple(_token(t, i, limits) for i, t in enumerate(fields.array(tokens, limits.max_rows, "tokens")))
    if has_hidden:
        size = payload.size("f32", len(read), limits.hidden_size)
        if len(parts[1]) != size:
            fields.refuse(f"{size} bytes", len(parts[1]), "hidden states")
        rows = payload.decode("f32", parts[1], len(read), limits.hidden_size)
        read = tuple(replace(token, hidden=row) for token, row in zip(read, rows, strict=True))
    return StepResult(
        fields.integer(number, 0, _MAX_NUMBER, "number"),
        read,
        _timings(timings),
        _error(error),
    )


def check_sampling(sampling: Sampling, limits: Limits) -> None:
    """Refuse a sampling that could not travel (the sampler's own checks come first).

    Raises:
        WireError: names the field, what was wanted and what came.
    """
    _sampling(list(_packed_sampling(sampling)), limits, "sampling")


# Writing. Long lists of numbers (history, logit bias) are raw little-endian bytes: small, and quick to check.


def _packed(header: list[Any]) -> bytes:
    # the packer begins with so much memory: by default more than an allocator has at hand
    packed: bytes = msgpack.packb(header, buf_size=_PACKER_BYTES)
    return packed


def _packed_end(frame: Frame | StepResult) -> tuple[list[tuple[float, float, float, float, float, int]], str | None]:
    timings = [(t.wait, t.queued, t.compute, t.send, t.change, t.rows) for t in frame.timings]
    return timings, None if frame.error is None else frame.error[:_MAX_ERROR]


def _packed_operation(operation: Operation) -> tuple[Any, ...]:
    match operation:
        case Open(sequence, sampling, history, prompt):
            return "open", sequence, _packed_sampling(sampling), np.array(history, "<i4").tobytes(), prompt
        case Fork(source, target, length):
            return "fork", source, target, length
        case Free(sequence):
            return "free", sequence


def _packed_sampling(sampling: Sampling) -> tuple[Any, ...]:
    return (
        *(float(getattr(sampling, name)) for name in _SAMPLING_FLOATS),
        *(getattr(sampling, name) for name in _SAMPLING_INTEGERS),
        sampling.logprobs,
        np.array(list(sampling.logit_bias), "<i4").tobytes(),
        np.array(list(sampling.logit_bias.values()), "<f8").tobytes(),
    )


_SAMPLING_FLOATS = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, math.inf),
    "presence_penalty": (-math.inf, math.inf),
    "frequency_penalty": (-math.inf, math.inf),
}
_SAMPLING_INTEGERS = {"top_k": (0, 2**31 - 1), "seed": (-(2**63), 2**64 - 1)}


# Reading.


def _fields(parts: Sequence[bytes], counts: tuple[int, ...], width: int, limits: Limits) -> list[Any]:
    """The header's fields after version and epoch."""
    if len(parts) not in counts:
        fields.refuse(f"{' or '.join(map(str, counts))} part{'s' * (counts[-1] > 1)}", len(parts), "parts")
    if len(parts[0]) > limits.header_bytes:
        fields.refuse(f"a header of at most {limits.header_bytes} bytes", len(parts[0]), "header")
    longest = max(limits.max_rows, limits.max_operations, MAX_STAGES)
    try:
        header = msgpack.unpackb(parts[0], use_list=True, max_array_len=longest, max_map_len=0, max_ext_len=0)
    except Exception as error:  # the unpacker has no common base for what it raises
        raise WireError(f"wanted msgpack, got something else ({error!r:.80})", where="frame.header") from None
    if type(header) is not list or len(header) < 2:
        fields.refuse("an array that begins with version and epoch", header, "header")
    if header[0] != PROTOCOL or type(header[0]) is not int:
        fields.refuse(f"protocol version {PROTOCOL}", header[0], "version")
    if header[1] != limits.epoch or type(header[1]) is not int:
        fields.refuse(f"epoch {limits.epoch}", header[1], "epoch")
    if len(header) != width:
        fields.refuse(f"{width} fields", len(header), "header")
    return header[2:]


def _rows(value: object, limits: Limits) -> tuple[SequenceRows, ...]:
    rows: list[SequenceRows] = []
    seen: set[int] = set()
    for i, item in enumerate(fields.array(value, limits.max_sequences, "rows")):
        sequence, past, count, sample = fields.record(item, 4, "rows", i)
        fields.integer(sequence, 0, _MAX_NUMBER, "rows", i, "sequence")
        fields.integer(past, 0, limits.kv_tokens, "rows", i, "past")
        fields.integer(count, 1, limits.max_rows, "rows", i, "count")
        fields.integer(sample, 0, count, "rows", i, "sample")
        if past + count > limits.kv_tokens:
            fields.refuse(f"past + count of at most {limits.kv_tokens}", past + count, "rows", i)
        if sequence in seen:
            fields.refuse("every sequence once", sequence, "rows", i, "sequence")
        seen.add(sequence)
        rows.append(SequenceRows(sequence, past, count, sample))
    return tuple(rows)


def _check_tokens(tokens: list[int], rows: Sequence[SequenceRows], limits: Limits) -> None:
    """As a list: between steps numpy's reductions cost ten times of Python's, for as few as there are in most steps."""
    if not tokens:
        return
    least, most = min(tokens), max(tokens)
    if not NOT_YET <= least <= most < limits.vocabulary:
        fields.refuse(f"token ids in 0..{limits.vocabulary - 1}", [least, most], "payload")
    if least != NOT_YET:
        return
    end = 0
    for r in rows:
        begin, end = end, end + r.count
        if r.count > 1 and NOT_YET in tokens[begin:end]:
            fields.refuse("tokens that are not known yet in rows of their own", r.count, "payload")


def _verifies(value: object, rows: Sequence[SequenceRows], limits: Limits) -> tuple[Verify, ...]:
    sampled = {r.sequence: r.sample for r in rows}
    verifies = []
    for i, item in enumerate(fields.array(value, len(rows), "verifies")):
        sequence, branch, packed = fields.record(item, 3, "verifies", i)
        fields.integer(sequence, 0, _MAX_NUMBER, "verifies", i, "sequence")
        fields.integer(branch, 0, _MAX_NUMBER, "verifies", i, "branch")
        tokens = fields.tokens(packed, limits.max_rows, limits.vocabulary, "verifies", i, "tokens")
        wanted = sampled.pop(sequence, 0)
        if not tokens or len(tokens) != wanted:
            fields.refuse(f"tokens of the {wanted} sampled rows, once", len(tokens), "verifies", i, "tokens")
        verifies.append(Verify(sequence, branch, tokens))
    return tuple(verifies)


def _operations(value: object, limits: Limits) -> tuple[Operation, ...]:
    items = fields.array(value, limits.max_operations, "operations")
    return tuple(_operation(item, i, limits) for i, item in enumerate(items))


def _operation(item: object, i: int, limits: Limits) -> Operation:
    field = ("operations", i)
    if type(item) is list:
        match item:
            case ["open", sequence, sampling, history, prompt]:
                tokens = fields.tokens(history, limits.kv_tokens, limits.vocabulary, *field, "history")
                return Open(
                    fields.integer(sequence, 0, _MAX_NUMBER, *field, "sequence"),
                    _sampling(sampling, limits, *field, "sampling"),
                    tokens,
                    fields.integer(prompt, 0, limits.kv_tokens, *field, "prompt"),
                )
            case ["fork", source, target, length]:
                return Fork(
                    fields.integer(source, 0, _MAX_NUMBER, *field, "source"),
                    fields.integer(target, 0, _MAX_NUMBER, *field, "target"),
                    fields.integer(length, 0, limits.kv_tokens, *field, "length"),
                )
            case ["free", sequence]:
                return Free(fields.integer(sequence, 0, _MAX_NUMBER, *field, "sequence"))
    fields.refuse("an open, fork or free", item, *field)


def _sampling(value: object, limits: Limits, *field: str | int) -> Sampling:
    width = len(_SAMPLING_FLOATS) + len(_SAMPLING_INTEGERS) + 3
    values = fields.record(value, width, *field)
    named: dict[str, Any] = dict(zip([*_SAMPLING_FLOATS, *_SAMPLING_INTEGERS, "logprobs"], values[:-2], strict=True))
    for name, (least, most) in _SAMPLING_FLOATS.items():
        fields.real(named[name], least, most, *field, name)
    for name, (low, high) in _SAMPLING_INTEGERS.items():
        fields.integer(named[name], low, high, *field, name)
    if named["logprobs"] is not None:
        fields.integer(named["logprobs"], 0, MAX_TOP, *field, "logprobs")
    ids = fields.tokens(values[-2], MAX_LOGIT_BIAS, limits.vocabulary, *field, "logit_bias")
    if type(values[-1]) is not bytes or len(values[-1]) != 8 * len(ids):
        fields.refuse(f"{8 * len(ids)} bytes", values[-1], *field, "logit_bias")
    biases = np.frombuffer(values[-1], "<f8")
    if not np.isfinite(biases).all():
        fields.refuse("finite numbers", biases.tolist(), *field, "logit_bias")
    return Sampling(**named, logit_bias=dict(zip(ids, biases.tolist(), strict=True)))


def _timings(value: object) -> tuple[StageTiming, ...]:
    timings = []
    for i, item in enumerate(fields.array(value, MAX_STAGES, "timings")):
        *times, rows = fields.record(item, 6, "timings", i)
        wait, queued, compute, send, change = (fields.real(v, 0.0, math.inf, "timings", i) for v in times)
        count = fields.integer(rows, 0, _MAX_NUMBER, "timings", i)
        timings.append(StageTiming(wait, compute, send, queued, count, change))
    return tuple(timings)


def _error(value: object) -> str | None:
    if value is not None and (type(value) is not str or len(value) > _MAX_ERROR):
        fields.refuse(f"a text of at most {_MAX_ERROR} characters, or nothing", value, "error")
    return value


def _token(item: object, i: int, limits: Limits) -> Token:
    field = ("tokens", i)
    sequence, position, token, logprob, top = fields.record(item, 5, *field)
    if logprob is not None:
        fields.logprob(logprob, *field, "logprob")
    best = []
    for j, pair in enumerate(fields.array(top, MAX_TOP, *field, "top")):
        other, value = fields.record(pair, 2, *field, "top", j)
        fields.integer(other, 0, limits.vocabulary - 1, *field, "top", j)
        best.append((other, fields.logprob(value, *field, "top", j)))
    return Token(
        fields.integer(sequence, 0, _MAX_NUMBER, *field, "sequence"),
        fields.integer(position, 0, limits.kv_tokens, *field, "position"),
        fields.integer(token, 0, limits.vocabulary - 1, *field, "token"),
        logprob,
        tuple(best),
    )
