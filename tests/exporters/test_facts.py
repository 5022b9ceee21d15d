import json
from pathlib import Path
from typing import Any

import openvino as ov
import pytest
from tiny_gguf import CONTEXT, vocabulary, write_tiny_gguf

from exporters import facts
from exporters.sources import gguf
from shards.errors import ExportError
from shards.manifest import ModelFacts
from shards.progress import silent

CONFIG = {"model_type": "some-word", "max_position_embeddings": 4096}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("facts")
    return gguf.prepare(write_tiny_gguf(folder / "tiny.gguf"), folder, "keep", silent).graph


def read(graph: Path, folder: Path, **files: Any) -> ModelFacts:
    for name, content in {"config": CONFIG, **files}.items():
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return facts.read(graph, name="model", folder=folder)


def test_sizes_come_from_the_graph_whatever_the_config_says(graph: Path, tmp_path: Path) -> None:
    found = read(graph, tmp_path, config=CONFIG | {"num_hidden_layers": 99, "hidden_size": 9, "vocab_size": 9})
    assert (found.layers, found.hidden_size, found.vocabulary) == (2, 64, len(vocabulary()))
    assert (found.kv_heads, found.head_size, found.hidden_dtype) == (2, 16, "f32")
    assert (found.name, found.architecture, found.context_length) == ("model", "some-word", 4096)


@pytest.mark.parametrize(
    ("files", "stops"),
    [
        ({}, ()),
        ({"config": CONFIG | {"eos_token_id": 5}}, (5,)),
        ({"generation_config": {"eos_token_id": [7, 3]}}, (3, 7)),
        ({"config": CONFIG | {"eos_token_id": 5}, "generation_config": {"eos_token_id": 7}}, (5, 7)),
        ({"config": CONFIG | {"eos_token_id": None}}, ()),
        ({"config": CONFIG | {"eos_token_id": [-1, 10**6, 8]}}, (8,)),
        ({"config": {"text_config": CONFIG | {"eos_token_id": 6}}}, (6,)),
    ],
)
def test_stop_tokens_are_all_that_any_file_names(
    graph: Path, tmp_path: Path, files: dict[str, Any], stops: tuple[int, ...]
) -> None:
    assert read(graph, tmp_path, **files).stop_tokens == stops


_ADDED = {str(i): {"content": text, "special": True} for i, text in enumerate(["<eos>", "<bos>", "<|im_end|>"])}


@pytest.mark.parametrize(
    "files",
    [
        {"config": {"max_position_embeddings": "many"}},
        {"config": {"max_position_embeddings": -5}},
        {"config": CONFIG | {"model_type": 7}},
        {"tokenizer_config": {"model_max_length": "big"}},
        {"tokenizer_config": {"added_tokens_decoder": {"x": 3}}},
        {"tokenizer_config": {"chat_template": [5]}},
        {"tokenizer": {"added_tokens": {"a": 1}}},
    ],
)
def test_files_of_another_shape_are_refused(graph: Path, tmp_path: Path, files: dict[str, Any]) -> None:
    with pytest.raises(ExportError, match="makes no sense") as caught:
        read(graph, tmp_path, **files)
    assert caught.value.where == str(tmp_path)


def test_tokens_by_text(graph: Path, tmp_path: Path) -> None:
    config = {"added_tokens_decoder": _ADDED, "bos_token": {"content": "<bos>"}, "eos_token": "<eos>"}
    found = read(graph, tmp_path, tokenizer_config=config)
    assert (found.stop_tokens, found.bos_token, found.bos_text, found.eos_text) == ((0,), 1, "<bos>", "<eos>")


def test_special_tokens_in_the_tokenizer_file(graph: Path, tmp_path: Path) -> None:
    added = [{"id": int(i), **token} for i, token in _ADDED.items()]
    found = read(graph, tmp_path, tokenizer={"added_tokens": added}, tokenizer_config={"eos_token": "<eos>"})
    assert found.stop_tokens == (0,)


@pytest.mark.parametrize(("template", "stops"), [("{{ m }}<|im_end|>", (0, 2)), ("{{ m }}", (0,))])
def test_what_ends_a_turn_of_the_chat_template_stops(
    graph: Path, tmp_path: Path, template: str, stops: tuple[int, ...]
) -> None:
    config = {"added_tokens_decoder": _ADDED, "eos_token": "<eos>", "chat_template": template}
    found = read(graph, tmp_path, tokenizer_config=config)
    assert (found.stop_tokens, found.chat_template) == (stops, template)


def test_chat_template_of_several(graph: Path, tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert read(graph, tmp_path, tokenizer_config={"chat_template": named}).chat_template == "plain"


def test_a_template_file_goes_before_the_config(graph: Path, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("file ✓", "utf-8")
    assert read(graph, tmp_path, tokenizer_config={"chat_template": "config"}).chat_template == "file ✓"


def test_the_limit_of_the_tokenizer_stands_in_for_a_context_length(graph: Path, tmp_path: Path) -> None:
    found = read(graph, tmp_path, config={}, tokenizer_config={"model_max_length": 777})
    assert found.context_length == 777


def test_an_unlimited_tokenizer_says_nothing(graph: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"how long a context.*max_position_embeddings"):
        read(graph, tmp_path, config={}, tokenizer_config={"model_max_length": 10**30})


def test_runtime_information_of_the_tokenizer_is_used_last(graph: Path, tmp_path: Path) -> None:
    tokenizer = tmp_path / "openvino_tokenizer.xml"
    tokenizer.write_text(
        '<net><rt_info><eos_token_id value="4" /><bos_token_id value="9" /><chat_template value="a &lt; b" />'
        "</rt_info></net>",
        "utf-8",
    )
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"bos_token_id": 3}), "utf-8")
    found = facts.read(graph, name="model", folder=tmp_path, tokenizer=tokenizer)
    assert (found.stop_tokens, found.bos_token, found.chat_template) == ((4,), 3, "a < b")


def test_nonsense_names_the_field(graph: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="context_length: Input should be greater than 0"):
        read(graph, tmp_path, config=CONFIG | {"max_position_embeddings": -5})


def test_a_gguf_names_its_ends(graph: Path) -> None:
    metadata = {
        "general.architecture": "word",
        "word.context_length": 64,
        "tokenizer.ggml.tokens": ["<a>", "<b>", "<c>", "<d>"],
        "tokenizer.ggml.token_type": [3, 3, 3, 3],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.eot_token_id": 2,
        "tokenizer.ggml.eom_token_id": 3,
    }
    found = facts.read(graph, name="model", metadata=metadata)
    assert (found.stop_tokens, found.eos_text, found.bos_token, found.bos_text) == ((0, 2, 3), "<a>", None, "")


def test_a_gguf_beside_the_graph_is_read(graph: Path, tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    found = facts.read(graph, name="model", folder=tmp_path)
    assert (found.context_length, found.stop_tokens) == (CONTEXT, (0, 2))


@pytest.mark.parametrize("content", ["{", "[]", "\x00"])
def test_a_damaged_file_is_named(graph: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, "utf-8")
    with pytest.raises(ExportError) as caught:
        facts.read(graph, name="model", folder=tmp_path)
    assert caught.value.where == str(tmp_path / "config.json")


def test_weights_are_described_by_what_the_graph_holds(smollm2_ir: Path) -> None:
    model = ov.Core().read_model(smollm2_ir / "openvino_model.xml")
    assert facts.describe_weights(model) == "int4 asym, group 32 + int8 asym, group 32"
