"""Measurements on nodes, ordered by a head over real sockets."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from scripted_head import PATIENCE, ScriptedHead, Statuses, ref, start_node

from agent.fleet.control.messages import MeasureModel, ModelMeasured
from agent.fleet.node.node_packages import of_measurement, of_stage
from pipeline.link import KeyPair
from shards.errors import ConfigurationError, StageError
from shards.manifest import WEIGHTS
from shards.profile import ROWS, measured_stages
from shards.store import PackageStore

pytestmark = pytest.mark.usefixtures("nothing_stays")


def test_a_model_is_fetched_and_measured_once(head: ScriptedHead, tiny_package: Path, tmp_path: Path) -> None:
    statuses = Statuses()
    heard: list[str] = []
    with (
        start_node(head, tmp_path, "full", lends=tiny_package) as full,
        start_node(head, tmp_path, "bare", observe=statuses.add) as bare,
    ):
        head.wait(2)
        model = ref(tiny_package, [full])
        asked = (["openvino-paged"], "exact", "AUTO")
        measured = head.orders.measure_model(
            bare.key, model, *asked, progress=lambda what, done, total: heard.append(what)
        ).result(PATIENCE)
        (costs,) = measured.profiles
        assert (costs.device, costs.engine, costs.mode, costs.rows) == ("CPU", "openvino-paged", "exact", ROWS)
        assert "measuring layers" in heard
        assert any(status.measuring is not None for status in statuses)
        statuses.wait(lambda status: status.measuring is None)
        assert head.orders.measure_model(bare.key, model, *asked).result(PATIENCE).profiles == (costs,)
        (kept,) = (tmp_path / "bare-tuning").iterdir()
        before = kept.stat().st_mtime_ns
        order = MeasureModel(
            task="again", model=model, engines=("openvino-paged",), mode="exact", device="CPU", again=True
        )
        head.server.tell(bare.key, order)
        while not (isinstance(said := head.said.get(timeout=PATIENCE), ModelMeasured) and said.task == "again"):
            pass
        assert kept.stat().st_mtime_ns > before


def test_a_damaged_package_is_measured_all_the_same(head: ScriptedHead, tiny_package: Path, tmp_path: Path) -> None:
    with (
        start_node(head, tmp_path, "full", lends=tiny_package) as full,
        start_node(head, tmp_path, "bare") as bare,
    ):
        head.wait(2)
        model = ref(tiny_package, [full])
        asked = (["openvino-paged"], "exact", "CPU")
        head.orders.measure_model(bare.key, model, *asked).result(PATIENCE)
        (kept,) = (tmp_path / "bare-tuning").iterdir()
        kept.unlink()
        store = PackageStore(tmp_path / "bare" / model.package_id)
        with (store.folder / WEIGHTS).open("r+b") as file:
            file.seek(store.manifest.spans.layers[1][0][0])
            file.write(b"\xff" * 64)
        assert head.orders.measure_model(bare.key, model, *asked).result(PATIENCE).profiles[0].device == "CPU"


@pytest.mark.parametrize(
    ("device", "holders", "what"), [("NPU", True, "no device 'NPU'"), ("CPU", False, "no other node")]
)
def test_a_measurement_that_cannot_be_made_says_why(
    head: ScriptedHead, tiny_package: Path, tmp_path: Path, device: str, holders: bool, what: str
) -> None:
    with (
        start_node(head, tmp_path, "full", lends=tiny_package) as full,
        start_node(head, tmp_path, "bare") as bare,
    ):
        head.wait(2)
        model = ref(tiny_package, [full] if holders else [])
        future = head.orders.measure_model(bare.key, model, ["openvino-paged"], "exact", device)
        with pytest.raises(StageError, match=what) as failed:
            future.result(PATIENCE)
        assert (failed.value.where or "").startswith("bare: ")


def test_closing_ends_a_measurement(head: ScriptedHead, tiny_package: Path, tmp_path: Path) -> None:
    with start_node(head, tmp_path, lends=tiny_package) as node:
        head.wait(1)
        begun: list[bool] = []
        future = head.orders.measure_model(
            node.key,
            ref(tiny_package, []),
            ["openvino-paged"],
            "exact",
            "CPU",
            progress=lambda *_: begun.append(True),
        )
        while not begun:
            assert psutil.Process().is_running()
    with pytest.raises(StageError, match="gone"):
        future.result(PATIENCE)


def test_links_are_measured_and_what_cannot_be_reached_is_missing(head: ScriptedHead, tmp_path: Path) -> None:
    with start_node(head, tmp_path, "one") as one, start_node(head, tmp_path, "two") as two:
        head.wait(2)
        stranger = KeyPair.new().public
        (link,) = head.orders.measure_links(one.key, [stranger, two.key]).result(PATIENCE)
        assert link.peer == two.key
        assert link.latency_ms > 0
        assert link.bytes_per_second > 0
        assert head.orders.measure_links(two.key, []).result(PATIENCE) == ()


def test_only_the_layers_that_are_measured_are_wanted(smollm2_package: Path) -> None:
    store = PackageStore(smollm2_package)
    depth = store.manifest.facts.layers
    assert measured_stages(depth, where="it") == ((0, 1), (1, 2), (1, 5), (depth - 1, depth))
    wanted = set(of_measurement("openvino-paged")(store))
    assert wanted == {piece for stage in ((0, 5), (depth - 1, depth)) for piece in store.pieces_of_stage(*stage)}
    assert wanted < set(store.all_pieces())


def test_a_stage_wants_the_tokenizer_too(smollm2_package: Path) -> None:
    store = PackageStore(smollm2_package)
    beyond = set(of_stage(3, 4)(store)) - set(store.pieces_of_stage(3, 4))
    assert {piece.path for piece in beyond} == {
        entry.path for entry in store.manifest.files if entry.path.startswith("tokenizer/")
    }


def test_a_small_model_is_not_measured_in_parts() -> None:
    with pytest.raises(ConfigurationError, match="a model of 3 layers is too small"):
        measured_stages(3, where="it")
