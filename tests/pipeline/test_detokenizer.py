from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import KINDS

from pipeline.detokenizer import Detokenizer
from pipeline.tokenizer import Tokenizer
from shards import manifest


class Shared(NamedTuple):
    tokenizer: Tokenizer
    detokenizer: Detokenizer
    vocabulary: int


@pytest.fixture(scope="module")
def smollm2(smollm2_package: Path) -> Shared:
    tokenizer, vocabulary = Tokenizer.load(smollm2_package), manifest.read(smollm2_package).facts.vocabulary
    return Shared(tokenizer, Detokenizer(tokenizer, vocabulary), vocabulary)


@pytest.fixture(scope="module", params=KINDS)
def tiny(request: pytest.FixtureRequest, tiny_tokenizers: Path) -> Shared:
    return load(tiny_tokenizers, request.param)


@cache
def load(tiny_tokenizers: Path, kind: str, more: int = 0) -> Shared:
    tokenizer = Tokenizer.load(tiny_tokenizers / kind)
    vocabulary = json.loads((tiny_tokenizers / kind / "oracle.json").read_text("utf-8"))["vocabulary"]
    vocabulary += more
    return Shared(tokenizer, Detokenizer(tokenizer, vocabulary), vocabulary)


def streamed(detokenizer: Detokenizer, ids: list[int], *, continues: bool = False) -> list[str]:
    stream = detokenizer.stream(continues=continues)
    return [*(stream.add(token) for token in ids), stream.finish()]


@given(st.lists(st.integers(0, 49_151), max_size=60))
def test_smollm2_streams_what_it_decodes(smollm2: Shared, ids: list[int]) -> None:
    tokenizer, detokenizer, _ = smollm2
    assert "".join(streamed(detokenizer, ids)) == tokenizer.decode(ids)


@given(st.lists(st.integers(0, 10_000), max_size=40))
def test_every_kind_streams_what_it_decodes(tiny: Shared, numbers: list[int]) -> None:
    tokenizer, detokenizer, vocabulary = tiny
    ids = [number % vocabulary for number in numbers]
    assert "".join(streamed(detokenizer, ids)) == tokenizer.decode(ids)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="�")))
def test_any_text_comes_whole_character_by_character(tiny_tokenizers: Path, text: str) -> None:
    tokenizer, detokenizer, _ = load(tiny_tokenizers, "byte_level")
    shown = ""
    for piece in streamed(detokenizer, tokenizer.encode(text, special=False)):
        shown += piece
        assert text.startswith(shown)
    assert shown == text


@pytest.mark.parametrize("text", ["🙂", "日本語", "👩‍👩‍👧‍👦", "a🙂b🙃"])
def test_a_character_over_several_tokens_is_held_back_until_it_is_whole(smollm2: Shared, text: str) -> None:
    tokenizer, detokenizer, _ = smollm2
    ids = tokenizer.encode(text)
    assert "" in streamed(detokenizer, ids)[:-1]
    shown = ""
    for piece in streamed(detokenizer, ids):
        shown += piece
        assert text.startswith(shown)
    assert shown == text


def test_a_character_that_never_becomes_whole_is_replaced_only_when_that_is_certain(smollm2: Shared) -> None:
    tokenizer, detokenizer, _ = smollm2
    *most, last = tokenizer.encode("🙂")
    (letter,) = tokenizer.encode("a")
    assert streamed(detokenizer, [*most, last])[-2:] == ["🙂", ""]
    assert streamed(detokenizer, most) == [*[""] * len(most), "�"]
    assert streamed(detokenizer, [*most, letter]) == [*[""] * len(most), "�a", ""]
    assert streamed(detokenizer, [last]) == ["��", ""]


def test_most_kinds_have_a_table(tiny_tokenizers: Path) -> None:
    tables = {kind for kind in KINDS if load(tiny_tokenizers, kind).detokenizer.is_table}
    assert tables == set(KINDS) - {"end_of_word"}


def test_a_space_dropped_at_the_start_of_a_text_stays_in_the_middle_of_one(tiny_tokenizers: Path) -> None:
    tokenizer, detokenizer, _ = load(tiny_tokenizers, "llama")
    ids = tokenizer.encode("the fox")  # begins with a special token
    assert "".join(streamed(detokenizer, ids)) == "the fox"
    assert "".join(streamed(detokenizer, ids, continues=True)) == " the fox"


def test_special_tokens_have_no_text_but_a_name(smollm2: Shared) -> None:
    tokenizer, detokenizer, _ = smollm2
    (end,) = tokenizer.encode("<|im_end|>")
    assert streamed(detokenizer, [end]) == ["", ""]
    assert detokenizer.token_bytes(end) == b"<|im_end|>"
    assert detokenizer.token_bytes(tokenizer.encode(" the")[0]) == b" the"


@pytest.mark.parametrize("kind", ["byte_level", "llama"])
def test_ids_past_the_tokenizers_have_no_text(tiny_tokenizers: Path, kind: str) -> None:
    """Logits are often padded to be wider than the tokenizer."""
    tokenizer, detokenizer, vocabulary = load(tiny_tokenizers, kind, more=64)
    (letter,) = tokenizer.encode("a", special=False)[-1:]
    last = vocabulary - 1
    assert streamed(detokenizer, [last, letter, last]) == ["", "a", "", ""]
    assert detokenizer.token_bytes(last) == b""


def test_answers_do_not_mix(smollm2: Shared) -> None:
    tokenizer, detokenizer, _ = smollm2
    smile, word = tokenizer.encode("🙂"), tokenizer.encode("Hello world")
    one, other = detokenizer.stream(), detokenizer.stream()
    shown = [one.add(smile[0]), other.add(word[0]), *(one.add(token) for token in smile[1:]), other.add(word[1])]
    assert "".join(shown) == "Hello🙂 world"
