"""What the survey makes of what nodes report; the fleet is a test's own."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_head import record as node_record

from agent.fleet.control.messages import LinkMeasure, ModelMeasured
from agent.fleet.head.event_log import EventLog
from agent.fleet.head.node_record import NodeRecord
from agent.fleet.head.survey import Survey
from pipeline.planning.plan import HEAD, ModelSize
from pipeline.running import RunOptions
from shards.errors import ConfigurationError, StageError
from shards.profile import CostProfile
from shards.progress import silent
from shards.runtime import EngineName, Mode

HERE, NEAR, FAR = "h" * 40, "n" * 40, "f" * 40


def record(key: str, links: dict[str, tuple[float, float]], unreachable: set[str] | None = None) -> Any:
    measures = {p: LinkMeasure(peer=p, latency_ms=ms, bytes_per_second=rate) for p, (ms, rate) in links.items()}
    return SimpleNamespace(key=key, links=measures, unreachable=unreachable or set())


def links(*records: Any) -> dict[tuple[str, str], float]:
    fleet = SimpleNamespace(nodes=lambda: records, local_key=HERE)
    found = Survey(fleet, None, None, {}).links()  # type: ignore[arg-type]
    return {(link.source, link.target): link.latency_ms for link in found}


def test_a_way_measured_from_one_end_counts_for_both_directions() -> None:
    found = links(record(NEAR, {FAR: (0.2, 1e8)}), record(FAR, {}))
    assert found == {(NEAR, FAR): 0.2, (FAR, NEAR): 0.2}


def test_each_direction_keeps_its_own_measurement() -> None:
    found = links(record(NEAR, {FAR: (0.2, 1e8)}), record(FAR, {NEAR: (0.7, 1e7)}))
    assert found == {(NEAR, FAR): 0.2, (FAR, NEAR): 0.7}


def test_the_head_is_where_its_own_node_is() -> None:
    found = links(record(HERE, {NEAR: (0.4, 1e8)}), record(NEAR, {}))
    assert found[HEAD, NEAR] == found[NEAR, HEAD] == 0.4


def test_nodes_that_cannot_reach_each_other_are_far_apart() -> None:
    found = links(record(NEAR, {}, {FAR}), record(FAR, {}))
    assert found[NEAR, FAR] == found[FAR, NEAR] > 1000


class Fleet:
    """Nodes that are asked to measure, and answer when a test says so."""

    def __init__(self) -> None:
        self.record = node_record(NEAR)
        self.local_key = HERE
        self.orders = self
        self.events = EventLog()
        self.asked: list[Future[Any]] = []
        self.again: list[bool] = []
        self.engines: list[tuple[str, ...]] = []
        self.has_device = True

    def nodes(self) -> tuple[NodeRecord, ...]:
        return (self.record,)

    def device_of(self, _: NodeRecord) -> str:
        if not self.has_device:
            raise ConfigurationError("it has no GPU")
        return "CPU"

    def model_ref(self, _: object) -> None:
        pass

    def leave_out(self, record: NodeRecord, why: str, *, final: bool = False) -> None:
        record.fail(why, final=final, now=monotonic())

    def measure_model(self, *given: Any, again: bool, **__: object) -> Future[Any]:
        self.asked.append(Future())
        self.engines.append(tuple(given[2]))
        self.again.append(again)
        return self.asked[-1]


PROFILE = CostProfile(
    device="CPU", engine="openvino-paged", mode="fast", rows=(1,), fixed=(1.0,), embed=(1.0,), layer=(1.0,), head=(1.0,)
)


SIZE = ModelSize(layers=(10,) * 4, embedding=1, head=1, kv_token=1, hidden_size=8, vocabulary=9)
SIZES: dict[EngineName, ModelSize] = {"openvino-paged": SIZE}


def measured(*profiles: CostProfile) -> ModelMeasured:
    return ModelMeasured(task="it", profiles=profiles)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def survey(fleet: Fleet) -> Survey:
    return Survey(fleet, None, RunOptions(), SIZES)  # type: ignore[arg-type]


def go_on(survey: Survey) -> None:
    survey.go_on(silent, lambda: None)


def pass_time(fleet: Fleet, seconds: float) -> None:
    record = fleet.record
    if record.setback is not None:
        record.setback = replace(record.setback, since=record.setback.since - seconds)
    if record.asked_at is not None:
        record.asked_at -= seconds


def test_a_node_that_could_not_measure_is_asked_again_after_a_while(fleet: Fleet, survey: Survey) -> None:
    go_on(survey)
    fleet.asked[0].set_exception(StageError("the peer was lost"))
    assert survey.is_complete and not survey.is_due
    go_on(survey)
    assert len(fleet.asked) == 1
    pass_time(fleet, 30)
    assert survey.is_due
    go_on(survey)
    assert len(fleet.asked) == 2 and fleet.record.setback is None and not survey.is_due
    fleet.asked[1].set_result(measured(PROFILE))
    assert [offer.id for offer in survey.offers()] == [NEAR]
    assert fleet.record.failures == 0


def test_a_node_whose_stage_failed_keeps_its_measurement(fleet: Fleet, survey: Survey) -> None:
    go_on(survey)
    fleet.asked[0].set_result(measured(PROFILE))
    fleet.leave_out(fleet.record, "the process was killed")
    assert survey.offers() == () and [offer.id for offer in survey.known()] == [NEAR]
    pass_time(fleet, 30)
    go_on(survey)
    assert survey.offers() and len(fleet.asked) == 1


def test_a_node_without_the_wanted_device_is_not_asked_again(fleet: Fleet, survey: Survey) -> None:
    fleet.has_device = False
    go_on(survey)
    pass_time(fleet, 1e6)
    assert survey.is_complete and not survey.is_due and not fleet.asked


def test_a_node_that_measures_for_too_long_is_noticed_and_asked_again(fleet: Fleet, survey: Survey) -> None:
    go_on(survey)
    assert not survey.is_due
    pass_time(fleet, 601)
    assert survey.is_due  # nothing else tells of it
    go_on(survey)
    assert survey.is_complete and not survey.is_due and fleet.asked[0].cancelled()
    assert fleet.record.setback and "within 600 s" in fleet.record.setback.why
    pass_time(fleet, 30)
    go_on(survey)
    assert len(fleet.asked) == 2


def test_what_was_measured_counts_until_it_is_measured_again(fleet: Fleet, survey: Survey) -> None:
    go_on(survey)
    fleet.asked[0].set_result(measured(PROFILE))
    survey.discard(NEAR)
    go_on(survey)
    go_on(survey)
    assert fleet.again == [False, True] and survey.offers()
    better = PROFILE.model_copy(update={"layer": (0.5,)})
    fleet.asked[1].set_result(measured(better))
    go_on(survey)
    assert len(fleet.asked) == 2 and survey.offers()[0].costs is better


BOTH: dict[EngineName, ModelSize] = {"openvino-paged": SIZE, "llamacpp": SIZE.model_copy(update={"head": 5})}
LLAMACPP = PROFILE.model_copy(update={"engine": "llamacpp"})


def with_both(fleet: Fleet, mode: Mode = "fast") -> Survey:
    fleet.record.hello = fleet.record.hello.model_copy(update={"engines": ("openvino", "llamacpp")})
    return Survey(fleet, None, RunOptions(mode=mode), BOTH)  # type: ignore[arg-type]


def test_a_node_offers_each_engine_it_was_measured_on(fleet: Fleet) -> None:
    survey = with_both(fleet)
    go_on(survey)
    assert fleet.engines == [("openvino-paged", "llamacpp")]
    fleet.asked[0].set_result(measured(PROFILE, LLAMACPP))
    offers = survey.offers()
    assert [(offer.id, offer.costs.engine, offer.size) for offer in offers] == [
        (NEAR, engine, size) for engine, size in BOTH.items()
    ]
    assert list(fleet.record.describe()["engines"]) == list(BOTH)


def test_an_engine_that_fails_is_told_and_the_other_one_serves(fleet: Fleet) -> None:
    survey = with_both(fleet)
    go_on(survey)
    failures: dict[EngineName, str] = {"openvino-paged": "the driver crashed"}
    fleet.asked[0].set_result(ModelMeasured(task="it", profiles=(LLAMACPP,), failures=failures))
    assert [offer.costs.engine for offer in survey.offers()] == ["llamacpp"] and survey.is_complete
    assert fleet.events.describe()[-1]["what"] == "desk does not run openvino-paged: the driver crashed"


def test_what_a_node_says_of_an_engine_nobody_asked_for_is_ignored(fleet: Fleet, survey: Survey) -> None:
    go_on(survey)
    fleet.asked[0].set_result(measured(PROFILE, LLAMACPP, PROFILE))
    assert [offer.costs.engine for offer in survey.offers()] == ["openvino-paged"]
    survey.discard(NEAR)
    go_on(survey)
    fleet.asked[1].set_result(measured(LLAMACPP))
    assert survey.offers() == () and fleet.record.setback is not None


def test_in_exact_mode_a_node_has_one_engine(fleet: Fleet) -> None:
    go_on(with_both(fleet, "exact"))
    assert fleet.engines == [("openvino-paged",)]


def test_a_node_without_the_device_runs_llama_cpp(fleet: Fleet) -> None:
    fleet.has_device = False
    go_on(with_both(fleet, "exact"))
    assert fleet.engines == [("llamacpp",)] and fleet.record.device == "CPU" and fleet.record.setback is None


def test_a_node_without_an_engine_for_the_model_is_left_out(fleet: Fleet, survey: Survey) -> None:
    fleet.record.hello = fleet.record.hello.model_copy(update={"engines": ("llamacpp",)})
    go_on(survey)
    assert not fleet.asked and fleet.record.setback and "it runs llamacpp" in fleet.record.setback.why
