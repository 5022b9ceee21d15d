from __future__ import annotations

import json

import pytest
from fake_packages import make_package
from hypothesis import given
from hypothesis import strategies as st

from agent.fleet.bulk.bulk_messages import (
    REQUEST_BYTES,
    SLICE_BYTES,
    Answer,
    Request,
    WantEcho,
    WantSlice,
    encode,
    pack_held,
    read_answer,
    read_request,
    unpack_held,
)
from shards.errors import WireError
from shards.manifest import PIECE_BYTES, WEIGHTS
from shards.store import PackageStore

ID = "ab" * 32


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> PackageStore:
    folder = tmp_path_factory.mktemp("package")
    make_package(folder, 9 * PIECE_BYTES + 1)
    return PackageStore(folder)


def test_messages_survive_the_way() -> None:
    want = WantSlice(package_id=ID, path=WEIGHTS, index=3, offset=SLICE_BYTES, length=1000)
    request = Request(number=7, want=want)
    assert read_request(encode(request)) == request
    assert len(encode(Request(number=2**63 - 1, want=want.model_copy(update={"path": "ä" * 1024})))) < REQUEST_BYTES
    answer = Answer(number=7)
    assert read_answer([encode(answer), b"bytes"]) == (answer, b"bytes")
    refusal = Answer(number=8, refusal="no")
    assert read_answer([encode(refusal)]) == (refusal, b"")


@pytest.mark.parametrize(
    "change",
    [
        {"package_id": "../" + ID[3:]},
        {"package_id": ID + "\n"},
        {"package_id": ID.upper()},
        {"path": "x" * 1025},
        {"path": 7},
        {"index": -1},
        {"index": "0"},
        {"offset": -1},
        {"offset": PIECE_BYTES},
        {"length": 0},
        {"length": SLICE_BYTES + 1},
        {"length": 2**31},
        {"length": 1e3},
        {"more": 1},
        {"kind": "everything"},
    ],
)
def test_what_is_out_of_bounds_is_no_request(change: dict[str, object]) -> None:
    want = {"kind": "slice", "package_id": ID, "path": WEIGHTS, "index": 0, "offset": 0, "length": 1}
    read_request(json.dumps({"number": 1, "want": want}).encode())
    with pytest.raises(WireError, match="a bulk message is not as agreed: want"):
        read_request(json.dumps({"number": 1, "want": want | change}).encode())


@given(st.binary(max_size=200))
def test_noise_is_no_message(data: bytes) -> None:
    with pytest.raises(WireError):
        read_request(data)
    with pytest.raises(WireError):
        read_answer([data, b""])


def test_answers_have_bytes_or_a_refusal() -> None:
    for parts in (
        [],
        [encode(Answer(number=1))],
        [encode(Answer(number=1, refusal="no")), b""],
        [encode(Answer(number=1)), b"", b""],
        [encode(Request(number=1, want=WantEcho(size=0))), b""],
    ):
        with pytest.raises(WireError):
            read_answer(parts)


@given(data=st.data())
def test_what_is_held_survives_the_way(store: PackageStore, data: st.DataObject) -> None:
    every = store.all_pieces()
    absent = data.draw(st.sets(st.sampled_from(every)))
    held = pack_held(store.manifest, absent)
    assert len(held) == 1 + 2  # a bit a piece
    assert unpack_held(store.manifest, held, every) == set(every) - absent
    for wrong in (held[:-1], held + b"\0", b""):
        with pytest.raises(WireError, match="3 were expected"):
            unpack_held(store.manifest, wrong, every)
