from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import KINDS, TEXTS

from pipeline.tokenizer import Tokenizer
from shards.errors import PackageError
from shards.manifest import DETOKENIZER, TOKENIZER

TRICKY = [
    *TEXTS,
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><|im_start|> <|im_end|>x<|im_end|>",
    "<|im_sta rt|> </s> <0x41> [INST]",
    " leading", "trailing ", "\n\n\n", "\r\n \t", " ", "   a",
    "don't DON'T I'll we've they're it's 's",
    "1234567890 3.14159 1e-10 0xFF 1,000,000",
    "#include <vector>\nint main() { return 0; } // ok",
    "Größe naïve Ærøskøbing Ελληνικά Русский العربية עברית हिन्दी ไทย 한국어 中文",
    "e\u0301 vs é, ﬁ ligature, ① ½ ™",
    "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪👍🏽",
    "\u200b\u200d\ufeff\u00a0\u2028\u3000",
    "x" * 300, "ab " * 100, "é" * 99, "=" * 77,
]  # fmt: skip


@pytest.fixture(scope="module")
def smollm2(smollm2_package: Path) -> Tokenizer:
    return Tokenizer.load(smollm2_package)


@pytest.fixture(scope="module")
def genai(smollm2_package: Path) -> Any:
    import openvino_genai

    return openvino_genai.Tokenizer(smollm2_package / "tokenizer")


@pytest.mark.parametrize("text", TRICKY)
def test_smollm2_ids_are_those_of_openvino_genai(smollm2: Tokenizer, genai: Any, text: str) -> None:
    expected = genai.encode(text).input_ids.data[0].tolist()
    for special in (True, False):
        assert smollm2.encode(text, special=special) == expected
    assert smollm2.decode(expected) == genai.decode(expected)
    assert smollm2.decode(expected, skip_special=False) == genai.decode(expected, skip_special_tokens=False) == text


@pytest.fixture(scope="module")
def byte_level(tiny_tokenizers: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizers / "byte_level")


@given(st.text())
def test_any_text_survives(byte_level: Tokenizer, text: str) -> None:
    readable = "".join("�" if "\ud800" <= character <= "\udfff" else character for character in text)
    assert byte_level.decode(byte_level.encode(text, special=False), skip_special=False) == readable


def test_nul_and_lone_surrogates_have_a_meaning(smollm2: Tokenizer) -> None:
    assert smollm2.decode(smollm2.encode("a\0b\0")) == "a\0b\0"
    assert smollm2.encode("a\ud800b") == smollm2.encode("a�b")


@pytest.mark.parametrize("unit", ["The quick brown fox. ", "a", " ", "\n", "日本語"])
def test_a_megabyte_is_neither_refused_nor_cut(smollm2: Tokenizer, unit: str) -> None:
    text = unit * (2**20 // len(unit.encode()))
    ids = smollm2.encode(text)
    assert len(ids) > 8192  # where the tokenizer graph itself would cut
    assert smollm2.decode(ids) == text


def test_what_is_not_a_token_has_no_text(smollm2: Tokenizer) -> None:
    assert smollm2.decode([]) == ""
    assert smollm2.decode([10**6, -1]) == ""
    assert smollm2.decode_bytes(np.empty((3, 0), np.int64)) == [b"", b"", b""]


def test_bytes_that_are_no_character_become_replacement_characters(smollm2: Tokenizer) -> None:
    whole = smollm2.encode("🙂")
    assert smollm2.decode_bytes([[token] for token in whole]) == [b"\xf0\x9f", b"\x99\x82"]
    assert smollm2.decode(whole) == "🙂"
    assert smollm2.decode(whole[:1]) == "�"


def test_many_threads_may_use_it_at_once(smollm2: Tokenizer) -> None:
    texts = [text * 20 for text in TRICKY]
    expected = [smollm2.encode(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert list(pool.map(smollm2.encode, texts)) == expected
            assert list(pool.map(lambda ids: smollm2.decode(ids, skip_special=False), expected)) == texts


def oracle(tiny_tokenizers: Path, kind: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((tiny_tokenizers / kind / "oracle.json").read_text("utf-8"))
    return read


@pytest.mark.parametrize("kind", ["byte_level", "byte_level_clean_up", "llama"])
def test_ids_and_text_are_hugging_faces(tiny_tokenizers: Path, kind: str) -> None:
    tokenizer = Tokenizer.load(tiny_tokenizers / kind)
    for case in oracle(tiny_tokenizers, kind)["cases"]:
        assert tokenizer.encode(case["text"]) == case["ids"]
        assert tokenizer.encode(case["text"], special=False) == case["plain"]
        assert tokenizer.decode(case["ids"]) == case["decoded"]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_graph_as_exported(tiny_tokenizers: Path, kind: str) -> None:
    import openvino as ov
    import openvino_tokenizers  # noqa: F401

    compiled = ov.Core().compile_model(tiny_tokenizers / kind / TOKENIZER, "CPU")
    tokenizer = Tokenizer.load(tiny_tokenizers / kind)
    for text in TEXTS:
        assert tokenizer.encode(text) == compiled([np.array([text])])["input_ids"][0].tolist()


def test_special_tokens_around_and_in_a_text_are_apart(tiny_tokenizers: Path) -> None:
    tokenizer = Tokenizer.load(tiny_tokenizers / "llama")
    assert tokenizer.encode("") == [1, 2]
    assert tokenizer.encode("", special=False) == []
    assert tokenizer.encode("<s>a", special=False)[0] == 1
    assert tokenizer.decode([1, 2]) == ""
    assert tokenizer.decode([1, 2], skip_special=False) == "<s></s>"


def test_spaces_before_punctuation_stay(tiny_tokenizers: Path) -> None:
    tokenizer = Tokenizer.load(tiny_tokenizers / "byte_level_clean_up")
    assert tokenizer.decode(tokenizer.encode("x [1 , 2] ' s ?")) == "x [1 , 2] ' s ?"


@pytest.mark.parametrize("name", [TOKENIZER, DETOKENIZER])
def test_a_missing_graph_is_named(tiny_tokenizers: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(tiny_tokenizers / "llama", tmp_path / "package")
    (tmp_path / "package" / name).unlink()
    with pytest.raises(PackageError, match="the tokenizer is missing") as caught:
        Tokenizer.load(tmp_path / "package")
    assert caught.value.where == str(tmp_path / "package" / name)


@pytest.mark.parametrize("name", [TOKENIZER, DETOKENIZER])
@pytest.mark.parametrize("damage", ["not xml", "cut", "no weights", "the other graph"])
def test_a_damaged_graph_is_named(tiny_tokenizers: Path, tmp_path: Path, name: str, damage: str) -> None:
    package = tmp_path / "package"
    shutil.copytree(tiny_tokenizers / "llama", package)
    path = package / name
    if damage == "not xml":
        path.write_text("hello", "utf-8")
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == "no weights":
        path.with_suffix(".bin").write_bytes(b"")
    else:
        other = package / (DETOKENIZER if name == TOKENIZER else TOKENIZER)
        path.write_bytes(other.read_bytes())
        path.with_suffix(".bin").write_bytes(other.with_suffix(".bin").read_bytes())
    with pytest.raises(PackageError, match="cannot be used") as caught:
        Tokenizer.load(package)
    assert caught.value.where == str(path)
