"""Token ids are compared with Hugging Face's tokenizers library, set up the way each model family publishes it."""

import random
from pathlib import Path
from typing import Any

import openvino as ov
import openvino_tokenizers  # noqa: F401  (registers the operations)
import pytest
from tiny_gguf import write_tiny_gguf
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from exporters.agreement import tokenise
from exporters.sources import gguf_tokenizer
from exporters.sources.gguf_file import GgufFile, read_gguf
from shards.errors import ExportError

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PUBLISHED = {"qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2, "llama-bpe": _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")}

TEXTS = [
    "Hello 2024, it's 3.14159 and 1,234,567!",
    "  leading and trailing   ",
    "tabs\tand\n\nnew lines\r\n\r\n  end",
    "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n",
    "im_start < endoftext > <|im_star|><|endoftext|>x",
    "日本語 한국어 🙂 👩‍👩‍👧‍👦 e\u0301 Ünïcödé",
    "def f(x):\n    return x**2  # 12345",
    "I'LL we'll DON'T '' ' 'x",
    "½ ² ٣ \u00a0 \u2028",
    " ",
]


def published(file: GgufFile) -> Tokenizer:
    tokens = file.metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in file.metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    pre = file.metadata["tokenizer.ggml.pre"]
    steps: list[Any] = (
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        if pre == "smollm"
        else [
            pre_tokenizers.Split(Regex(_PUBLISHED[pre]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    types = file.metadata["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, types, strict=True) if kind == 3])
    return tokenizer


def random_texts(count: int) -> list[str]:
    rng = random.Random(0)
    letters = "ab the123 45\n\t.,'lL<|>_é日🙂 \r"
    return ["".join(rng.choices(letters, k=rng.randint(1, 30))) for _ in range(count)]


def differing(file: GgufFile, tokenizer: Path, texts: list[str]) -> list[str]:
    right = published(file)
    compiled = ov.Core().compile_model(tokenizer, "CPU")
    ours = [compiled([text])["input_ids"][0].tolist() for text in texts]
    return [text for text, ids in zip(texts, ours, strict=True) if ids != right.encode(text).ids]


def test_smollm2(smollm2_gguf: Path, tmp_path: Path) -> None:
    file = read_gguf(smollm2_gguf)
    gguf_tokenizer.check(file)
    tokenizer = gguf_tokenizer.convert(file, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"openvino_{name}.{kind}" for name in ("tokenizer", "detokenizer") for kind in ("xml", "bin")
    }
    assert differing(file, tokenizer, TEXTS) == []
    assert len(tokenise(tokenizer, "2024")) == 4  # no BOS, one token for each digit


@pytest.mark.parametrize("pre", ["smollm", *_PUBLISHED])
def test_every_known_way_of_splitting(tmp_path: Path, pre: str) -> None:
    file = read_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", pre=pre))
    tokenizer = gguf_tokenizer.convert(file, tmp_path / "made")
    assert differing(file, tokenizer, TEXTS + random_texts(20)) == []


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.ggml.pre": "tekken"}, "'tekken'; known: smollm"),
        ({"tokenizer.ggml.pre": None}, r"lacks tokenizer\.ggml\.pre"),
        ({"tokenizer.ggml.merges": None}, r"lacks tokenizer\.ggml\.merges"),
        ({"tokenizer.ggml.model": "llama"}, "kind 'llama'"),
        ({"tokenizer.ggml.model": None}, "no tokenizer"),
    ],
)
def test_a_tokenizer_that_would_be_read_wrongly_is_refused(
    tmp_path: Path, metadata: dict[str, Any], message: str
) -> None:
    file = read_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", metadata=metadata))
    with pytest.raises(ExportError, match=message):
        gguf_tokenizer.check(file)
