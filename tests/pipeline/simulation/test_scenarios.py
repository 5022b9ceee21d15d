"""The scenarios that are shipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.cli.simulate import shipped
from pipeline.simulation.measures import Measures
from pipeline.simulation.report import run, simulate
from pipeline.simulation.scenario import Scenario, read_scenario

SCENARIOS = list(shipped().values())
OWN = "far-apart-with-a-draft"
"""Of no system that anything was published of."""
PUBLISHED = [file for file in SCENARIOS if file.stem != OWN]
PAPERS = [file for file in SCENARIOS if file.stem.startswith("paper-")]


def by_name(file: Path) -> str:
    return file.stem


@pytest.mark.parametrize("file", SCENARIOS, ids=by_name)
def test_it_says_what_it_is_and_where_its_figures_come_from(file: Path) -> None:
    scenario = read_scenario(file)
    assert scenario.name == file.stem
    assert scenario.about
    assert bool(scenario.sources) == bool(scenario.published) == (file in PUBLISHED)
    assert any(system.policy == "ours" for system, _ in scenario.systems().values())


@pytest.mark.parametrize("file", PUBLISHED, ids=by_name)
def test_it_gives_what_was_published(file: Path) -> None:
    report = run(_published_only(read_scenario(file)))
    assert report.checks
    assert [check for check in report.checks if not check.ok] == []


@pytest.mark.parametrize("file", SCENARIOS, ids=by_name)
def test_every_variant_runs_to_the_end(file: Path) -> None:
    for system, loads in read_scenario(file).systems().values():
        fewest = min(loads, key=lambda load: load.users)
        requests = simulate(system, fewest).requests.values()
        assert len(requests) == fewest.requests
        assert all(times.ended is not None for times in requests)


def test_over_a_long_way_guesses_pay_for_few_users_and_cost_nothing_over_a_short_one() -> None:
    systems = read_scenario(shipped()[OWN]).systems()
    for way, users, least in (("20 ms", 0, 1.7), ("50 ms", 0, 2.2), ("50 ms", 1, 1.7), ("2 ms", 1, 0.97)):
        guessing, none = (
            Measures.of(list(simulate(system, loads[users]).requests.values())).phase
            for system, loads in (systems[f"{way}, guesses follow"], systems[f"{way}, none"])
        )
        assert guessing > least * none, (way, users)


@pytest.mark.parametrize("file", PAPERS, ids=by_name)
def test_ours_is_faster_than_one_token_of_one_user_at_a_time(file: Path) -> None:
    systems = read_scenario(file).systems()
    (hub, loads), (ours, _) = systems["hub"], systems["ours"]
    for load in loads:
        theirs, got = (Measures.of(list(simulate(system, load).requests.values())) for system in (hub, ours))
        assert got.phase > theirs.phase, load.title


def _published_only(scenario: Scenario) -> Scenario:
    """Without the loads and variants of which nothing was published."""
    loads = {figure.load for figure in scenario.published}
    variants = {figure.variant for figure in scenario.published}
    return scenario.model_copy(
        update={
            "loads": tuple(load for load in scenario.loads if load.title in loads),
            "variants": tuple(variant for variant in scenario.variants if variant.name in variants),
        }
    )
