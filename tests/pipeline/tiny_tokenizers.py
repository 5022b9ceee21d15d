"""Small tokenizers of every construction, as optimum-intel exports them, with Hugging Face's own answers beside them.

Run as a script, in a process of its own because transformers loads torch: `tiny_tokenizers.py FOLDER` writes for each
kind a package's tokenizer folder and an oracle.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = ("byte_level", "byte_level_clean_up", "llama", "unigram", "word_piece", "end_of_word")

TEXTS = [
    "Hello world",
    "Once upon a time , there was a fox . It 's the user's text, isn't it?",
    "héllo wörld ñandú 日本語 テキスト 🙂🙃 👩‍👩‍👧",
    "def f(x):\n    return x + 1\n\n\n\t# comment",
    "  two  spaces and more   ",
    "12345 67 8",
    "a\u0301 e\u0308 \u200b\u00a0",
    "",
]

_CORPUS = [text for text in TEXTS if text] * 40
_Made = tuple[Any, dict[str, str]]


def _byte_level() -> _Made:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|bos|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.train_from_iterator(
        _CORPUS,
        trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    return tokenizer, {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}


def _llama() -> _Made:
    from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    special = ["<unk>", "<s>", "</s>", *byte_tokens]
    tokenizer.train_from_iterator(
        [text for text in _CORPUS if text.isascii()],
        trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False),
    )
    plain = json.loads(tokenizer.to_str())  # byte tokens are ordinary tokens, not added ones
    plain["added_tokens"] = [token for token in plain["added_tokens"] if token["content"] not in byte_tokens]
    tokenizer = Tokenizer.from_str(json.dumps(plain))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def _unigram() -> _Made:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(
        _CORPUS,
        trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>", show_progress=False),
    )
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def _word_piece() -> _Made:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.train_from_iterator(
        _CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", "[CLS]"], show_progress=False)
    )
    return tokenizer, {"unk_token": "[UNK]"}


def _end_of_word() -> _Made:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    tokenizer.train_from_iterator(
        _CORPUS,
        trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False),
    )
    return tokenizer, {"unk_token": "<unk>"}


_MAKE: dict[str, Callable[[], _Made]] = {
    "byte_level": _byte_level,
    "byte_level_clean_up": _byte_level,
    "llama": _llama,
    "unigram": _unigram,
    "word_piece": _word_piece,
    "end_of_word": _end_of_word,
}


def make(kind: str, folder: Path) -> None:
    """Write one kind's tokenizer folder and its oracle."""
    import openvino as ov
    import openvino_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer, names = _MAKE[kind]()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=kind.endswith("clean_up"), **names
    )
    encoder, decoder = openvino_tokenizers.convert_tokenizer(wrapped, with_detokenizer=True)
    (folder / "tokenizer").mkdir(parents=True)
    ov.save_model(encoder, folder / "tokenizer" / "openvino_tokenizer.xml")
    ov.save_model(decoder, folder / "tokenizer" / "openvino_detokenizer.xml")
    cases = []
    for text in TEXTS:
        ids = wrapped(text)["input_ids"]
        plain = wrapped(text, add_special_tokens=False)["input_ids"]
        decoded = wrapped.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        cases.append({"text": text, "ids": ids, "plain": plain, "decoded": decoded})
    oracle = {"vocabulary": len(wrapped), "special": sorted(wrapped.all_special_ids), "cases": cases}
    (folder / "oracle.json").write_text(json.dumps(oracle), "utf-8")


if __name__ == "__main__":
    for name in KINDS:
        make(name, Path(sys.argv[1]) / name)
