"""Measurements and stages of llama.cpp on nodes: real processes, and only the bytes that they need."""

from __future__ import annotations

from pathlib import Path

import pytest
from packages import llamacpp_package_of
from scripted_head import PATIENCE, ScriptedHead, ref, start_node
from tiny_gguf import write_tiny_gguf

from shards.manifest import GRAPH, LLAMACPP_TENSORS, WEIGHTS
from shards.profile import ROWS
from shards.runtime import EngineName
from shards.store import PackageStore

ENGINES: tuple[EngineName, ...] = ("openvino-paged", "llamacpp")

pytestmark = pytest.mark.usefixtures("nothing_stays")


def test_both_engines_are_measured_and_kept(head: ScriptedHead, smollm2_llamacpp_package: Path, tmp_path: Path) -> None:
    with (
        start_node(head, tmp_path, "full", lends=smollm2_llamacpp_package) as full,
        start_node(head, tmp_path, "bare") as bare,
    ):
        head.wait(2)
        model = ref(smollm2_llamacpp_package, [full])
        measured = head.orders.measure_model(bare.key, model, ENGINES, "exact", "CPU").result(PATIENCE)
        assert [(costs.engine, costs.rows) for costs in measured.profiles] == [
            ("openvino-paged", ROWS),
            ("llamacpp", ROWS),
        ]
        assert not measured.failures
        assert all(min(costs.layer) > 0 and not costs.attention for costs in measured.profiles)
        assert len(list((tmp_path / "bare-tuning").glob("costs-*.json"))) == 2
        again = head.orders.measure_model(bare.key, model, ENGINES, "exact", "CPU").result(PATIENCE)
        assert again.profiles == measured.profiles


def test_what_one_engine_lacks_does_not_keep_the_other_from_being_measured(head: ScriptedHead, tmp_path: Path) -> None:
    package = llamacpp_package_of(write_tiny_gguf(tmp_path / "tiny.gguf", layers=4), tmp_path / "tiny")
    with (
        start_node(head, tmp_path, "full", lends=package) as full,
        start_node(head, tmp_path, "bare") as bare,
    ):
        head.wait(2)
        measured = head.orders.measure_model(bare.key, ref(package, [full]), ENGINES, "exact", "CPU").result(PATIENCE)
        assert [costs.engine for costs in measured.profiles] == ["llamacpp"]
        assert "llama.cpp backend alone" in measured.failures["openvino-paged"]


def test_a_node_fetches_what_its_engine_needs(
    head: ScriptedHead, smollm2_llamacpp_package: Path, tmp_path: Path
) -> None:
    with (
        start_node(head, tmp_path, "full", lends=smollm2_llamacpp_package) as full,
        start_node(head, tmp_path, "bare", engine="llamacpp") as bare,
    ):
        head.wait(2)
        assert head.nodes[bare.key].hello.engines == ("llamacpp",)
        with head.open_chain(
            smollm2_llamacpp_package, [(full, 0, 15), (bare, 15, 30)], holders=[full], changes={"engine": "llamacpp"}
        ) as chain:
            assert [facts.engine for facts in chain.facts] == ["llamacpp", "llamacpp"]
        there = PackageStore(tmp_path / "bare" / ref(smollm2_llamacpp_package, []).package_id)
        wanted = there.pieces_of_stage(15, 30, "llamacpp")
        assert not there.missing(wanted)
        fetched = {piece for piece in there.all_pieces() if not there.missing([piece])}
        assert {piece for piece in fetched if not piece.path.startswith("tokenizer/")} == set(wanted)
        assert {piece.path for piece in fetched}.isdisjoint({GRAPH, WEIGHTS})
        assert sum(piece.size for piece in fetched if piece.path == LLAMACPP_TENSORS) < sum(
            piece.size for piece in there.pieces(LLAMACPP_TENSORS)
        )
