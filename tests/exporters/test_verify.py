"""The verification: it passes what is right and finds what is wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from packages import rehash, with_tokenizer
from zoo import family_ir

from exporters import verify
from exporters.export import export
from exporters.split import write_stage
from shards import manifest as manifests
from shards.errors import ExportError
from shards.manifest import DETOKENIZER, TOKENIZER, WEIGHTS
from shards.progress import silent


def test_a_package_agrees_with_itself(tiny_package: Path) -> None:
    facts = manifests.read(tiny_package).facts
    tokens = verify.sample_tokens(tiny_package, facts)
    result = verify.compare(tiny_package, verify.halves(tiny_package, facts.layers), tokens, silent)
    assert result.passed
    assert result.stages == 2
    assert result.rows == sum(map(len, tokens)) > 200
    assert result.same_top == 1


def test_every_layer_a_stage_of_its_own(tiny_package: Path) -> None:
    facts = manifests.read(tiny_package).facts
    chain = [verify.stage_config(tiny_package, layer, layer + 1) for layer in range(facts.layers)]
    result = verify.compare(tiny_package, chain, verify.sample_tokens(tiny_package, facts), silent)
    assert result.stages == facts.layers
    assert result.largest_difference <= 1e-4


@pytest.mark.parametrize("value", [1.0, np.nan])
def test_a_changed_weight_fails_with_both_numbers(tiny_package: Path, tmp_path: Path, value: float) -> None:
    facts = manifests.read(tiny_package).facts
    write_stage(tiny_package, 0, 2, tmp_path / "0", silent)
    manifest = write_stage(tiny_package, 2, facts.layers, tmp_path / "1", silent)
    start, end = manifest.spans.layers[2][0]
    bad = np.full((end - start) // 2, value, np.float16).tobytes()
    with (tmp_path / "1" / WEIGHTS).open("r+b") as file:
        file.seek(start)
        file.write(bad)
    rehash(tmp_path / "1")
    chain = [verify.stage_config(tmp_path / "0", 0, 2), verify.stage_config(tmp_path / "1", 2, facts.layers)]
    with pytest.raises(ExportError, match=r"largest difference of a logit is (nan|[\d.e+-]+), [\d.e-]+ is allowed"):
        verify.compare(tiny_package, chain, verify.sample_tokens(tiny_package, facts), silent)


def test_real_text_is_what_is_compared(smollm2_package: Path) -> None:
    sequences = verify.sample_tokens(smollm2_package, manifests.read(smollm2_package).facts)
    assert max(map(len, sequences)) > 100
    assert min(map(len, sequences)) == 1
    assert all(ids.dtype == np.int64 for ids in sequences)


def test_a_tokenizer_of_a_larger_vocabulary_is_refused(smollm2_package: Path) -> None:
    facts = manifests.read(smollm2_package).facts.model_copy(update={"vocabulary": 1000})
    with pytest.raises(ExportError, match=r"the tokenizer makes token \d+, the model knows 0-999"):
        verify.sample_tokens(smollm2_package, facts)


def test_tokenizers_that_do_not_belong_together_are_refused(smollm2_package: Path, tmp_path: Path) -> None:
    """A detokenizer whose words are shifted by some, as one of a similar model would be."""
    shutil.copytree(smollm2_package / "tokenizer", tmp_path / "tokenizer")
    words = (tmp_path / DETOKENIZER).with_suffix(".bin")
    data = words.read_bytes()
    assert b"lighthouse" in data
    words.write_bytes(data.replace(b"lighthouse", b"LIGHTHOUSE"))
    facts = manifests.read(smollm2_package).facts
    with pytest.raises(ExportError, match="does not give back what it took"):
        verify.sample_tokens(tmp_path, facts)


def test_a_tokenizer_that_does_not_run_is_refused(smollm2_package: Path, tmp_path: Path) -> None:
    shutil.copytree(smollm2_package / "tokenizer", tmp_path / "tokenizer")
    (tmp_path / TOKENIZER).write_text("<net/>", "utf-8")
    with pytest.raises(ExportError, match="the tokenizer does not run"):
        verify.sample_tokens(tmp_path, manifests.read(smollm2_package).facts)


def test_an_export_that_fails_it_is_not_kept(smollm2_ir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = with_tokenizer(family_ir("llama"), smollm2_ir, tmp_path / "source")
    monkeypatch.setattr(verify, "sample_tokens", lambda package, facts: [np.arange(20)])
    export(str(source), tmp_path / "passes")
    monkeypatch.setattr(verify, "TOLERANCE", -1.0)
    with pytest.raises(ExportError, match="is allowed"):
        export(str(source), tmp_path / "fails")
    assert sorted(tmp_path.iterdir()) == sorted([source, tmp_path / "passes"])
