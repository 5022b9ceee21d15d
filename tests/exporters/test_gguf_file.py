import struct
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import write_tiny_gguf

from exporters.sources.gguf_file import read_gguf
from shards.errors import ExportError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_reads_what_the_reference_reader_reads(smollm2_gguf: Path) -> None:
    ours, theirs = read_gguf(smollm2_gguf), gguf.GGUFReader(smollm2_gguf)
    assert ours.metadata == {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert [(t.name, t.shape, t.dtype, t.start, t.size) for t in ours.tensors] == [
        (t.name, tuple(int(n) for n in t.shape), t.tensor_type.name, t.data_offset, t.n_bytes) for t in theirs.tensors
    ]
    assert ours.tensor_types == "Q4_1, Q8_0, F32"


def test_knows_the_block_size_of_every_type() -> None:
    from exporters.sources.gguf_file import _TYPES

    known = {number.value: (number.name, *sizes) for number, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {number: _TYPES[number] for number in known} == known


def test_the_tokenizer_is_copied_without_tensors(tiny: Path, tmp_path: Path) -> None:
    read_gguf(tiny).write_tokenizer(tmp_path / "copy.gguf", "another")
    copy = read_gguf(tmp_path / "copy.gguf")
    assert copy.tensors == ()
    assert copy.metadata == {**read_gguf(tiny).metadata, "tokenizer.ggml.pre": "another"}


def _with(path: Path, source: Path, at: int, data: bytes) -> Path:
    content = bytearray(source.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("at", "data", "message"),
    [
        (0, b"PK\x03\x04", "not a GGUF file"),
        (4, struct.pack("<I", 1), "GGUF version 1; versions 2 and 3"),
        (4, struct.pack("<I", 9), "GGUF version 9"),
        (4, struct.pack(">I", 3), "big endian"),
        (16, struct.pack("<Q", 2**60), "cut short or damaged"),
        (24, struct.pack("<Q", 2**60), "cut short or damaged"),
    ],
)
def test_what_is_not_a_readable_gguf_is_named(tiny: Path, tmp_path: Path, at: int, data: bytes, message: str) -> None:
    with pytest.raises(ExportError, match=message) as caught:
        read_gguf(_with(tmp_path / "bad.gguf", tiny, at, data))
    assert caught.value.where == str(tmp_path / "bad.gguf")
    assert caught.value.hint


def test_an_empty_file_is_not_a_gguf(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ExportError, match="not a GGUF file"):
        read_gguf(tmp_path / "empty.gguf")


def test_one_of_several_parts_is_refused(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "part.gguf", metadata={"split.count": 3})
    with pytest.raises(ExportError, match=r"one of 3 parts.*gguf-split --merge"):
        read_gguf(path)


def test_missing_tensor_bytes_are_counted(tiny: Path, tmp_path: Path) -> None:
    content = tiny.read_bytes()
    (tmp_path / "short.gguf").write_bytes(content[:-100])
    with pytest.raises(ExportError, match=f"need {len(content)} bytes, it has {len(content) - 100}"):
        read_gguf(tmp_path / "short.gguf")


def test_an_unknown_tensor_type_is_named(tiny: Path, tmp_path: Path) -> None:
    content = tiny.read_bytes()
    # name, number of dimensions, two dimensions, type
    at = content.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    with pytest.raises(ExportError, match=r"token_embd\.weight has a type that is not known here \(number 77\)"):
        read_gguf(_with(tmp_path / "bad.gguf", tiny, at, struct.pack("<I", 77)))


def test_a_number_that_is_wrong_takes_no_memory(tmp_path: Path) -> None:
    """A list of a hundred million bytes would become one of as many Python objects."""
    path = write_tiny_gguf(tmp_path / "list.gguf", metadata={"general.list": [1, 2, 3]})
    content = path.read_bytes()
    at = content.index(b"general.list") + len(b"general.list") + 4
    wrong = content[:at] + struct.pack("<IQ", 0, 10**8) + bytes(10**8)
    (tmp_path / "wide.gguf").write_bytes(wrong)
    with pytest.raises(ExportError, match=r"its header is to have at least 1000\d+ bytes, 67108864 at most are read"):
        read_gguf(tmp_path / "wide.gguf")
    at = content.index(b"smollm") - 8
    (tmp_path / "long.gguf").write_bytes(content[:at] + struct.pack("<Q", 10**8) + content[at + 8 :] + bytes(10**8))
    with pytest.raises(ExportError, match="its header is to have at least 1000"):
        read_gguf(tmp_path / "long.gguf")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"blk.1.attn_q.weight", b"blk.0.attn_q.weight", "two of its tensors have the same name"),
        (b"tokenizer.ggml.bos_token_id", b"tokenizer.ggml.eos_token_id", r"has tokenizer\.ggml\.eos_token_id twice"),
    ],
)
def test_what_two_readers_would_read_differently_is_refused(
    tiny: Path, tmp_path: Path, old: bytes, new: bytes, message: str
) -> None:
    (tmp_path / "twice.gguf").write_bytes(tiny.read_bytes().replace(old, new))
    with pytest.raises(ExportError, match=message):
        read_gguf(tmp_path / "twice.gguf")


def test_names_out_of_a_file_do_not_speak_to_the_terminal(tiny: Path, tmp_path: Path) -> None:
    content = tiny.read_bytes().replace(b"blk.0.attn_q.weight", b"\x1b[2J.attn_q.weight\n")
    at = content.index(b"\x1b[2J.attn_q.weight\n") + 19
    (tmp_path / "escape.gguf").write_bytes(content[:at] + struct.pack("<I", 9) + content[at + 4 :])
    with pytest.raises(ExportError, match=r"the tensor '\\x1b\[2J\.attn_q\.weight\\n' has 9 dimensions") as caught:
        read_gguf(tmp_path / "escape.gguf")
    assert str(caught.value).isprintable()


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0, 0.999))
def test_any_cut_is_an_export_error(tiny: Path, tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    content = tiny.read_bytes()
    path = tmp_path_factory.mktemp("cut") / "cut.gguf"
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ExportError):
        read_gguf(path)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_headers_never_end_in_another_error(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    end = min(tensor.start for tensor in read_gguf(tiny).tensors)
    content = bytearray(tiny.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "damaged.gguf"
    path.write_bytes(content)
    try:
        file = read_gguf(path)
    except ExportError as error:
        assert str(path) in str(error)
    else:
        assert all(tensor.start + tensor.size <= len(content) for tensor in file.tensors)
