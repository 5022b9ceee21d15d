"""Chains of OpenVINO and llama.cpp stages, both from the same GGUF.

The two are not near one another: openvino_genai rounds the weights again where it keeps them (4 bits with whole zero
points), and llama.cpp rounds what goes into each matrix product to 8 bits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from chains import Chain, chain
from numpy.typing import NDArray
from unsplit import Whole, WholeGguf

from pipeline.tokenizer import Tokenizer

TEXT = (
    "The lighthouse keeper wrote the weather into her book every morning: wind from the north-west, 4 degrees, rain by"
    " noon. Nobody had read the book for thirty years. Then a letter came, asking for the page of the 17th of March."
)
ENGINES = {"openvino-paged": "llamacpp", "openvino-stateful": "llamacpp", "llamacpp": "openvino-paged"}


@pytest.fixture(scope="module")
def tokens(smollm2_llamacpp_package: Path) -> list[int]:
    return Tokenizer.load(smollm2_llamacpp_package).encode(TEXT)


@pytest.fixture(scope="module")
def whole(smollm2_llamacpp_package: Path, tokens: list[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Logits of the model run whole, by OpenVINO and by llama.cpp."""
    return Whole(smollm2_llamacpp_package).logits(tokens), WholeGguf(smollm2_llamacpp_package).logits(tokens)


@pytest.mark.parametrize("first", ENGINES)
def test_a_mixed_chain_is_as_near_as_the_two_engines_are(
    first: str,
    smollm2_llamacpp_package: Path,
    tokens: list[int],
    whole: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> None:
    tokenizer = Tokenizer.load(smollm2_llamacpp_package)
    question = tokenizer.encode("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    apart = np.abs(whole[0] - whole[1])
    with (
        chain(smollm2_llamacpp_package, (0, 15), engine=first) as front,
        chain(smollm2_llamacpp_package, (15, 30), engine=ENGINES[first]) as back,
    ):
        stages = Chain([*front.stages, *back.stages])
        got = np.concatenate([stages.rows(1, at, tokens[at : at + 16]) for at in range(0, len(tokens), 16)])
        stages.free(1)
        said = tokenizer.decode(stages.generate({1: question}, count=12, chunk=16)[1])
    for reference in whole:
        difference = np.abs(got - reference)
        assert difference.max() <= apart.max()
        assert difference.mean() <= apart.mean()
    assert "Paris" in said
