from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest

from agent.bench.prompts import chat_prompts, long_prompt, mixed_prompts, shared_prompts
from pipeline.tokenizer import Tokenizer
from shards import manifest as manifests
from shards.manifest import ModelFacts


@pytest.fixture(scope="module")
def known(smollm2_package: Path) -> tuple[Tokenizer, ModelFacts]:
    return Tokenizer.load(smollm2_package), manifests.read(smollm2_package).facts


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Tokens both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def test_mixed_prompts_are_different_and_of_a_dozen_to_several_hundred_tokens(
    known: tuple[Tokenizer, ModelFacts],
) -> None:
    prompts = mixed_prompts(*known, 64)
    lengths = sorted(map(len, prompts))
    assert len(set(prompts)) == 64
    assert lengths[0] <= 12 and 40 <= lengths[32] <= 80 and 300 <= lengths[-1] <= 700
    assert mixed_prompts(*known, 64) == prompts
    assert mixed_prompts(*known, 2) == prompts[:2]
    assert len(set(chat_prompts(*known, 40))) == 40


def test_a_long_prompt_is_as_long_as_is_wanted_and_like_no_other(known: tuple[Tokenizer, ModelFacts]) -> None:
    one, other = (long_prompt(*known, 900, number) for number in (1, 2))
    assert len(one) == len(other) == 900
    template = common(*chat_prompts(*known, 2))
    assert common(one, other) <= template + 2  # the number's parenthesis


@pytest.mark.parametrize("system", ["its own", "none that the template knows", "no template"])
def test_shared_prompts_share_their_system_prompt_whatever_the_template_can(
    known: tuple[Tokenizer, ModelFacts], system: str
) -> None:
    tokenizer, facts = known
    if system == "no template":
        facts = facts.model_copy(update={"chat_template": None})
    elif system != "its own":
        strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}"
        facts = facts.model_copy(update={"chat_template": strict})
    first, second = shared_prompts(tokenizer, facts, 600, 0)
    assert first != second
    assert 600 <= common(first, second) < min(len(first), len(second))
    assert common(first, shared_prompts(tokenizer, facts, 600, 1)[0]) < 40
