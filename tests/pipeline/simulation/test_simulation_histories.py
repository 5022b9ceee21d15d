"""What holds whatever is simulated."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from small_systems import load, system

from pipeline.simulation.loads import Load
from pipeline.simulation.outcome import Outcome
from pipeline.simulation.report import simulate
from pipeline.simulation.system import System

STAGES = st.lists(
    st.builds(
        lambda one, more, buckets, context, jitter: {
            "step_ms": [(1, one), (16, one + more)],
            "buckets": buckets,
            "ms_per_1k_context": context,
            "jitter": jitter,
        },
        st.sampled_from([1, 5, 20]),
        st.sampled_from([0, 10, 100]),
        st.sampled_from([(), (2, 8)]),
        st.sampled_from([0, 10]),
        st.sampled_from([0, 0.3]),
    ),
    min_size=1,
    max_size=4,
)
LINKS = st.fixed_dictionaries(
    {
        "latency_ms": st.sampled_from([0, 3]),
        "mbit": st.sampled_from([None, 1]),
        "bytes_per_row": st.sampled_from([0, 500]),
    }
)
LENGTHS = st.one_of(
    st.integers(1, 40), st.just([1, 5, 30]), st.builds(lambda n: {"least": 1, "most": n}, st.integers(1, 40))
)
ARRIVALS = st.sampled_from(
    [
        {},
        {"interval_ms": 7},
        {"arrivals": "poisson", "rate": 50, "count": 12},
        {"arrivals": "closed", "count": 12},
        {"beside": [{"name": "late", "users": 1, "start_ms": 100, "prompt_tokens": 60, "new_tokens": 3}]},
        {"client": "one", "service": "batch"},
    ]
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[System, Load]:
    topology = draw(st.sampled_from(["chain", "hub"]))
    scheduler: dict[str, Any] = {
        "kv_tokens": draw(st.sampled_from([96, 4096])),
        "token_budget": draw(st.sampled_from([4, 128])),
        "max_sequences": draw(st.sampled_from([2, 64])),
        "prefix_cache": draw(st.booleans()),
    }
    return (
        system(
            *draw(STAGES),
            scheduler=scheduler,
            topology=topology,
            link=draw(LINKS),
            local_head=draw(st.booleans()),
            head_ms=draw(st.sampled_from([0, 2])),
        ),
        load(draw(st.integers(1, 6)), draw(LENGTHS), draw(LENGTHS), seed=draw(st.integers(0, 3)), **draw(ARRIVALS)),
    )


@settings(max_examples=200, deadline=None)
@given(cases())
def test_all_that_is_asked_is_answered_once_and_no_stage_does_two_things_at_once(case: tuple[System, Load]) -> None:
    simulated, asked = case
    outcome = simulate(simulated, asked)
    assert len(outcome.requests) == sum(cohort.requests for cohort in asked.cohorts)
    end = max(step.back for step in outcome.steps)
    for request in outcome.requests.values():
        assert request.arrived < request.tokens[0]
        assert sorted(request.tokens) == request.tokens
        assert len(request.tokens) == request.wanted
        assert request.ended == request.tokens[-1] <= end + simulated.head_ms * len(outcome.steps)
    for stage in outcome.busy:
        assert all(start < end for start, end in stage)
        assert all(before[1] <= after[0] for before, after in pairwise(stage))
        assert stage[-1][1] <= end
    rows = sum(step.rows for step in outcome.steps)
    needed = sum(request.prompt - request.cached + request.wanted - 1 for request in outcome.requests.values())
    assert rows >= needed
    assert 0 < outcome.kv_peak <= outcome.kv_tokens


@settings(max_examples=30, deadline=None)
@given(cases())
def test_the_same_case_has_the_same_outcome(case: tuple[System, Load]) -> None:
    assert simulate(*case) == simulate(*case)


def test_another_seed_is_another_run() -> None:
    def run(seed: int) -> Outcome:
        asked = load(4, {"least": 1, "most": 50}, arrivals="poisson", rate=20, seed=seed)
        return simulate(system({"step_ms": [(1, 10)], "jitter": 0.2}), asked)

    assert run(1) != run(2)
