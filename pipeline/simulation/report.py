"""Runs a scenario and tells what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pipeline.simulation.arrivals import Arrivals
from pipeline.simulation.kv_meter import KvMeter
from pipeline.simulation.loads import Load
from pipeline.simulation.measures import Measures, StageUse, stage_use, steps_by_rows
from pipeline.simulation.outcome import Outcome
from pipeline.simulation.scenario import Scenario
from pipeline.simulation.simulation import Simulation
from pipeline.simulation.system import System
from shards.errors import ConfigurationError, EdgeAgentError
from shards.progress import Progress, silent


@dataclass(frozen=True, slots=True)
class Row:
    """One variant under one load."""

    variant: str
    load: str
    users: int
    measures: Measures
    stages: list[StageUse]
    kv_peak: float
    """Part of the KV cache that was taken at most, what is kept for others to fork included."""
    steps_by_rows: dict[int, int]
    cohorts: dict[str, Measures]
    """Each cohort by itself, where there are several."""
    faster: float
    """Phase throughput over the base's under this load."""
    sooner: float
    """Median first token of the base over this one's."""

    def as_json(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Check:
    """A published figure, and what the simulation came to."""

    what: str
    wanted: float
    within: float
    got: float | None

    @property
    def ok(self) -> bool:
        """Whether it is near enough."""
        return self.got is not None and abs(self.got - self.wanted) <= self.within * self.wanted


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """What came of a scenario."""

    scenario: Scenario
    rows: list[Row]
    checks: list[Check]


def run(scenario: Scenario, progress: Progress = silent) -> SimulationReport:
    """Run every variant of a scenario under its loads; the same scenario gives the same report.

    Raises:
        ConfigurationError: a load cannot be served, or does not end; `where` names load and variant.
    """
    runs = [(name, system, load) for name, (system, loads) in scenario.systems().items() for load in loads]
    rows: list[Row] = []
    base: dict[str, Measures] = {}
    for done, (name, system, load) in enumerate(runs):
        try:
            outcome = simulate(system, load, _part(progress, done, len(runs)))
        except EdgeAgentError as error:
            where = f"loads[{scenario.loads.index(load)}] ({load.title}) under {name!r}"
            raise ConfigurationError(str(error), where=where) from error
        measures = Measures.of(list(outcome.requests.values()))
        rows.append(_row(name, load, outcome, measures, base.setdefault(load.title, measures)))
    progress("simulating", len(runs), len(runs))
    return SimulationReport(scenario, rows, _checks(scenario, rows))


def simulate(system: System, load: Load, progress: Progress = silent) -> Outcome:
    """Run a load over a system; `progress` is told of tokens.

    Raises:
        EdgeAgentError: it cannot be served, or does not end.
    """
    config, drafter = system.config, system.make_drafter(load.seed)
    simulation = Simulation(
        system.make_policy(drafter),
        system.models,
        system.all_links,
        KvMeter(config.kv_tokens, config.block),
        topology=system.topology,
        head_ms=system.head_ms,
        seed=load.seed,
        drafter=drafter,
    )
    return simulation.run(Arrivals(load), progress)


def _part(progress: Progress, done: int, total: int) -> Progress:
    """The progress of one run as that of all of them."""
    return lambda _, part, whole: progress("simulating", done + part / whole, total)


def _row(name: str, load: Load, outcome: Outcome, measures: Measures, base: Measures) -> Row:
    requests = list(outcome.requests.values())
    cohorts: dict[str, Measures] = {}
    if load.beside:
        for cohort in load.cohorts:
            cohorts[cohort.name] = Measures.of([times for times in requests if times.cohort == cohort.name])
    return Row(
        name,
        load.title,
        load.all_users,
        measures,
        stage_use(outcome),
        outcome.kv_peak / outcome.kv_tokens,
        steps_by_rows(outcome),
        cohorts,
        measures.phase / base.phase,
        base.first_p50_ms / measures.first_p50_ms,
    )


def _checks(scenario: Scenario, rows: list[Row]) -> list[Check]:
    found = {(row.variant, row.load): row.measures for row in rows}
    return [
        Check(
            f"{figure.variant}, {figure.load}: {figure.measure}",
            figure.value,
            figure.within,
            getattr(found[figure.variant, figure.load], figure.measure),
        )
        for figure in scenario.published
    ]
