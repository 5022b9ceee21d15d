from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_limits import LIMITS

from pipeline import payload, wire
from pipeline.messages import Fork, Free, Open, Sampling, SequenceRows, StageTiming, StepResult, Token
from pipeline.wire import Frame
from shards.errors import WireError

sequences = st.integers(0, 2**63 - 1)
tokens = st.integers(0, 99)
reals = st.floats(allow_nan=False, allow_infinity=False)
logprobs = st.floats(max_value=0.0, allow_nan=False)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0, 100),
    presence_penalty=reals,
    frequency_penalty=reals,
    logit_bias=st.dictionaries(tokens, reals, max_size=3),
    logprobs=st.none() | st.integers(0, 20),
    seed=st.integers(-(2**63), 2**64 - 1),
)
operations = st.one_of(
    st.builds(Open, sequences, samplings, st.lists(tokens, max_size=64).map(tuple), st.integers(0, 64)),
    st.builds(Fork, sequences, sequences, st.integers(0, 64)),
    st.builds(Free, sequences),
)
times = st.floats(0, 1e12)
timings = st.lists(
    st.builds(StageTiming, times, times, times, times, st.integers(0, 2**63 - 1), times), max_size=3
).map(tuple)
errors = st.none() | st.text(max_size=50)


@st.composite
def frames(draw: st.DrawFn, kind: payload.PayloadKind = "f32") -> Frame:
    rows = []
    for sequence in draw(st.lists(sequences, max_size=4, unique=True)):
        count = draw(st.integers(1, 4))
        rows.append(SequenceRows(sequence, draw(st.integers(0, 64 - count)), count, draw(st.integers(0, count))))
    error = None if rows else draw(errors)
    total = sum(r.count for r in rows)
    if kind == "tokens":
        x = np.array(draw(st.lists(tokens, min_size=total, max_size=total)), np.int32)
    else:
        x = np.array(
            draw(st.lists(st.floats(width=32, allow_nan=False), min_size=4 * total, max_size=4 * total)), np.float32
        )
        x = x.reshape(total, 4)
    ops = draw(st.lists(operations, max_size=3).map(tuple))
    return Frame(draw(st.integers(0, 2**63 - 1)), ops, tuple(rows), x, draw(timings), error)


results = st.builds(
    StepResult,
    st.integers(0, 2**63 - 1),
    st.lists(
        st.builds(
            Token,
            sequences,
            st.integers(0, 64),
            tokens,
            st.none() | logprobs,
            st.lists(st.tuples(tokens, logprobs), max_size=20).map(tuple),
        ),
        max_size=5,
    ).map(tuple),
    timings,
    errors,
)


def packed(frame: Frame, kind: payload.PayloadKind = "f32", epoch: int = 3) -> list[bytes]:
    return [bytes(part) for part in wire.encode(frame, epoch, kind)]


def apart(parts: list[bytes]) -> list[bytes]:
    """A small frame as a large one travels: the payload is a part of its own."""
    *header, data = msgpack.unpackb(parts[0])
    return [msgpack.packb([*header, None]), data]


@given(st.sampled_from(["f32", "tokens"]), st.booleans(), st.data())
def test_a_frame_comes_back_as_it_was(kind: payload.PayloadKind, is_apart: bool, data: st.DataObject) -> None:
    frame = data.draw(frames(kind))
    parts = packed(frame, kind)
    back = wire.decode(apart(parts) if is_apart else parts, LIMITS.model_copy(update={"payload": kind}))
    assert replace(back, x=None) == replace(frame, x=None)  # type: ignore[arg-type]
    np.testing.assert_array_equal(back.x, frame.x)


@given(results)
def test_a_result_comes_back_as_it_was(result: StepResult) -> None:
    assert wire.decode_result([bytes(p) for p in wire.encode_result(result, 3)], LIMITS) == result


def test_a_large_payload_is_a_part_of_its_own() -> None:
    limits = LIMITS.model_copy(update={"hidden_size": 8192})
    for rows, parts in ((2, 1), (3, 2)):
        x = np.ones((rows, 8192), np.float32)
        sent = packed(Frame(0, (), (SequenceRows(7, 3, rows, 1),), x))
        assert len(sent) == parts
        np.testing.assert_array_equal(wire.decode(sent, limits).x, x)


def test_f16_frames_hold_the_rows_within_its_precision() -> None:
    x = np.array([[1e6, -2, 3, 0.5]], np.float32)
    frame = Frame(0, (), (SequenceRows(7, 3, 1, 1),), x)
    back = wire.decode(packed(frame, "f16"), LIMITS.model_copy(update={"payload": "f16"}))
    np.testing.assert_allclose(back.x, x, rtol=2**-11)


def test_a_long_error_is_cut_rather_than_refused() -> None:
    frame = Frame(0, (), (), np.empty((0, 4), np.float32), error="x" * 10_000)
    assert wire.decode(packed(frame), LIMITS).error == "x" * 2000


# Every field is checked. A good frame, with one thing changed:

GOOD = Frame(
    5,
    (Open(1, Sampling(logit_bias={3: -1.5}), (1, 2), 2), Fork(1, 2, 32), Free(3)),
    (SequenceRows(1, 10, 2, 1), SequenceRows(2, 32, 1, 0)),
    np.ones((3, 4), np.float32),
    (StageTiming(1.0, 2.0, 3.0),),
)


def header_with(path: tuple[int, ...], value: object) -> list[bytes]:
    parts = packed(GOOD)
    header = msgpack.unpackb(parts[0])
    place = header
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return [msgpack.packb(header)]


@pytest.mark.parametrize(
    ("path", "value", "field", "wanted", "got"),
    [
        ((0,), 1, "version", "protocol version 4", "1"),
        ((0,), True, "version", "4", "True"),
        ((1,), 2, "epoch", "epoch 3", "2"),
        ((1,), 4, "epoch", "epoch 3", "4"),
        ((1,), None, "epoch", "epoch 3", "None"),
        ((2,), -1, "number", "0..", "-1"),
        ((2,), 1.0, "number", "integer", "1.0"),
        ((3,), "free", "operations", "array", "free"),
        ((3,), [["free", 1]] * 9, "operations", "8", "9"),
        ((3, 0), ["close", 1], "operations[0]", "open, fork or free", "close"),
        ((3, 0), ["free"], "operations[0]", "open, fork or free", "free"),
        ((3, 0, 1), -1, "operations[0].sequence", "0..", "-1"),
        ((3, 0, 2), [], "operations[0].sampling", "11", "[]"),
        ((3, 0, 2, 0), -0.5, "operations[0].sampling.temperature", "0.0", "-0.5"),
        ((3, 0, 2, 0), float("nan"), "operations[0].sampling.temperature", "finite", "nan"),
        ((3, 0, 2, 0), float("inf"), "operations[0].sampling.temperature", "finite", "inf"),
        ((3, 0, 2, 1), 1.5, "operations[0].sampling.top_p", "0.0..1.0", "1.5"),
        ((3, 0, 2, 6), -1, "operations[0].sampling.top_k", "0..", "-1"),
        ((3, 0, 2, 8), 21, "operations[0].sampling.logprobs", "20", "21"),
        ((3, 0, 2, 9), b"\x64\0\0\0", "operations[0].sampling.logit_bias", "0..99", "100"),
        ((3, 0, 2, 10), b"", "operations[0].sampling.logit_bias", "8 bytes", "b''"),
        ((3, 0, 2, 10), np.array(np.nan).tobytes(), "operations[0].sampling.logit_bias", "finite", "nan"),
        ((3, 0, 3), b"abc", "operations[0].history", "int32", "abc"),
        ((3, 0, 3), b"\0" * 4 * 65, "operations[0].history", "64", "b'"),
        ((3, 0, 3), b"\xff" * 4, "operations[0].history", "0..99", "-1"),
        ((3, 0, 4), 65, "operations[0].prompt", "64", "65"),
        ((3, 1, 3), 65, "operations[1].length", "64", "65"),
        ((4,), None, "rows", "array", "None"),
        ((4,), [[i, 0, 1, 0] for i in range(5)], "rows", "4", "5"),
        ((4, 0), [1, 2, 3], "rows[0]", "4 fields", "[1, 2, 3]"),
        ((4, 0, 0), -1, "rows[0].sequence", "0..", "-1"),
        ((4, 1, 0), 1, "rows[1].sequence", "once", "1"),
        ((4, 0, 1), 65, "rows[0].past", "64", "65"),
        ((4, 0, 1), 63, "rows[0]", "64", "65"),
        ((4, 0, 2), 0, "rows[0].count", "1..16", "0"),
        ((4, 0, 2), 17, "rows[0].count", "16", "17"),
        ((4, 0, 3), 3, "rows[0].sample", "0..2", "3"),
        ((4, 0, 2), 16, "rows", "16", "17"),
        ((4, 0, 2), 3, "payload shape", "[4, 4]", "[3, 4]"),
        ((5,), "f16", "payload kind", "f32", "f16"),
        ((6,), [3, 5], "payload shape", "[3, 4]", "[3, 5]"),
        ((6,), [3], "payload shape", "[3, 4]", "[3]"),
        ((6,), 3, "payload shape", "[3, 4]", "3"),
        ((7,), [[1.0, 2.0, 3.0, 4.0, 5.0, 6]] * 65, "header", "msgpack", "65 exceeds"),
        ((7, 0), [1.0], "timings[0]", "6 fields", "[1.0]"),
        ((7, 0, 2), -1.0, "timings[0]", "0.0", "-1.0"),
        ((7, 0, 5), -1, "timings[0]", "0", "-1"),
        ((7, 0, 5), 1.5, "timings[0]", "0", "1.5"),
        ((8,), 5, "error", "text", "5"),
        ((8,), "x" * 2001, "error", "2000", "xxx"),
        ((8,), "failed", "rows", "no rows", "2"),
        ((9,), 1, "echo", "true or false", "1"),
        ((11,), None, "payload", "a payload", "None"),
        ((11,), "x" * 48, "payload", "a payload", "xxx"),
        ((11,), b"x" * 47, "payload", "48 bytes", "47"),
    ],
)
def test_a_changed_field_is_refused_by_name(
    path: tuple[int, ...], value: object, field: str, wanted: str, got: str
) -> None:
    with pytest.raises(WireError) as refused:
        wire.decode(header_with(path, value), LIMITS)
    assert refused.value.where == f"frame.{field}"
    assert wanted in refused.value.what.partition(", got ")[0]
    assert got in refused.value.what.partition(", got ")[2]


@pytest.mark.parametrize(
    ("change", "field", "wanted", "got"),
    [
        (lambda h, p: [h], "payload", "a payload", "None"),
        (lambda h, p: [], "parts", "1 or 2 parts", "0"),
        (lambda h, p: [h, p, p], "parts", "1 or 2 parts", "3"),
        (lambda h, p: [*packed(GOOD), p], "payload", "no payload in the header", "b'"),
        (lambda h, p: [h, p[:-1]], "payload", "48 bytes", "47"),
        (lambda h, p: [h, p + b"\0"], "payload", "48 bytes", "49"),
        (lambda h, p: [h, b""], "payload", "48 bytes", "0"),
        (lambda h, p: [h[:-1], p], "header", "msgpack", ""),
        (lambda h, p: [h + b"\0", p], "header", "msgpack", ""),
        (lambda h, p: [b"", p], "header", "msgpack", ""),
        (lambda h, p: [b"\x05", p], "header", "array", "5"),
        (lambda h, p: [msgpack.packb([wire.PROTOCOL, 3, 5]), p], "header", "12 fields", "3"),
        (lambda h, p: [b"\0" * (LIMITS.header_bytes + 1), p], "header", "bytes", str(LIMITS.header_bytes + 1)),
    ],
)
def test_a_changed_part_is_refused_by_name(
    change: Callable[[bytes, bytes], list[bytes]], field: str, wanted: str, got: str
) -> None:
    with pytest.raises(WireError) as refused:
        wire.decode(change(*apart(packed(GOOD))), LIMITS)
    assert refused.value.where == f"frame.{field}"
    assert wanted in refused.value.what
    assert got in refused.value.what.partition(", got ")[2]


def test_token_ids_outside_the_vocabulary_are_refused() -> None:
    frame = Frame(0, (), (SequenceRows(1, 0, 2),), np.array([5, 100], np.int32))
    with pytest.raises(WireError, match=r"frame\.payload: wanted token ids in 0\.\.99, got \[5, 100\]"):
        wire.decode(packed(frame, "tokens"), LIMITS.model_copy(update={"payload": "tokens"}))


@pytest.mark.parametrize(
    ("result", "field"),
    [
        (StepResult(-1, ()), "number"),
        (StepResult(0, (Token(-1, 0, 0),)), "tokens[0].sequence"),
        (StepResult(0, (Token(0, 65, 0),)), "tokens[0].position"),
        (StepResult(0, (Token(0, 0, 100),)), "tokens[0].token"),
        (StepResult(0, (Token(0, 0, 0, 1.0),)), "tokens[0].logprob"),
        (StepResult(0, (Token(0, 0, 0, float("nan")),)), "tokens[0].logprob"),
        (StepResult(0, (Token(0, 0, 0, -1.0, ((100, -1.0),)),)), "tokens[0].top[0]"),
        (StepResult(0, (Token(0, 0, 0, -1.0, ((1, -1.0),) * 21),)), "tokens[0].top"),
        (StepResult(0, (Token(0, 0, 0),) * 17), "tokens"),
    ],
)
def test_a_wrong_result_is_refused_by_name(result: StepResult, field: str) -> None:
    with pytest.raises(WireError) as refused:
        wire.decode_result([bytes(p) for p in wire.encode_result(result, 3)], LIMITS)
    assert refused.value.where == f"frame.{field}"


def test_a_result_of_another_epoch_is_refused() -> None:
    with pytest.raises(WireError, match=r"frame\.epoch: wanted epoch 3, got 2"):
        wire.decode_result([bytes(p) for p in wire.encode_result(StepResult(0, ()), 2)], LIMITS)


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        (Sampling(top_k=2**31), "top_k"),
        (Sampling(seed=2**64), "seed"),
        (Sampling(logit_bias=dict.fromkeys(range(1025), 0.0)), "logit_bias"),
    ],
)
def test_a_sampling_that_cannot_travel_is_known_before(sampling: Sampling, field: str) -> None:
    limits = LIMITS.model_copy(update={"vocabulary": 5000})
    wire.check_sampling(Sampling(), limits)
    with pytest.raises(WireError, match=field):
        wire.check_sampling(sampling, limits)


# Fuzzing: nothing but a frame or a WireError comes out.

anything: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=20)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=20,
)


def never_surprises(parts: list[bytes]) -> None:
    for read in (wire.decode, wire.decode_result):
        try:
            read(parts, LIMITS)
        except WireError as error:
            assert error.where is not None and error.where.startswith("frame.")
            assert len(error.what) < 600


@given(st.lists(st.binary(max_size=300), max_size=3))
def test_random_bytes(parts: list[bytes]) -> None:
    never_surprises(parts)


@given(st.lists(anything, max_size=10), st.binary(max_size=64))
def test_random_headers(rest: list[object], data: bytes) -> None:
    header = msgpack.packb([wire.PROTOCOL, 3, *rest])
    never_surprises([header])
    never_surprises([header, data])


@given(frames(), st.data())
def test_mutated_frames(frame: Frame, data: st.DataObject) -> None:
    parts = packed(frame)
    if data.draw(st.booleans()):
        parts = apart(parts)
    which = data.draw(st.integers(0, len(parts) - 1))
    mutated = bytearray(parts[which])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated)))
        mutated[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    parts[which] = bytes(mutated)
    never_surprises(parts)


@given(frames(), st.data())
@settings(max_examples=300)
def test_frames_with_any_value_in_any_place(frame: Frame, data: st.DataObject) -> None:
    parts = packed(frame)
    header = place = msgpack.unpackb(parts[0])
    while True:
        index = data.draw(st.integers(0, len(place) - 1))
        if not (isinstance(place[index], list) and place[index] and data.draw(st.booleans())):
            break
        place = place[index]
    place[index] = data.draw(anything)
    never_surprises([msgpack.packb(header)])


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"\xdd\xff\xff\xff\xff", id="array of 4 Gi"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="map of 4 Gi"),
        pytest.param(b"\xc6\xff\xff\xff\xff", id="4 GiB of bytes"),
        pytest.param(b"\xdb\xff\xff\xff\xff", id="4 GiB of text"),
        pytest.param(b"\xc9\xff\xff\xff\xff\x01", id="4 GiB of extension"),
        pytest.param(b"\x91" * 60_000, id="deep"),
        pytest.param(b"\xdc\x00\x40" * 20_000, id="deep and wide"),
        pytest.param(b"\xdd\x00\x01\x00\x00" * 12_000, id="deep and wider than allowed"),
    ],
)
def test_a_header_cannot_claim_memory(header: bytes) -> None:
    tracemalloc.start()
    try:
        never_surprises([header, b""])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20
