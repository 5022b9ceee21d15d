from __future__ import annotations

import pytest
from small_fleets import model, network, node

from pipeline.planning.plan import HEAD, Link, Wish
from pipeline.planning.prediction import HEAD_MS, STAGE_MS, Pace, Times, paces

SIZE = model()
LINKS = [
    Link(source=HEAD, target="a", latency_ms=1.0, bytes_per_second=1e6),
    Link(source="a", target="b", latency_ms=2.0, bytes_per_second=1e5),
    Link(source="b", target=HEAD, latency_ms=4.0, bytes_per_second=1e6),
]
A = node("a", (1.0, 1.5, 4.0, 5.0), fixed=0.1, embed=0.2, head=3.0, by_row=0.0)
B = node("b", (2.0, 2.0, 2.0, 2.0), fixed=0.3, embed=0.2, head=3.0, by_row=0.0)
TIMES = Times(SIZE, [A, B], LINKS)


def test_a_step_is_its_stages_its_links_and_the_head() -> None:
    step = TIMES.step((0, 1), rows=1)
    assert step.bases == pytest.approx((STAGE_MS + 0.1 + 0.2, STAGE_MS + 0.3 + 3.0))
    assert step.layer == (1.0, 2.0)
    hidden = (2 * 64 + 200) / 1e5 * 1e3
    assert step.transfer == pytest.approx(hidden)
    assert step.way == pytest.approx(HEAD_MS + 1.0 + 2.0 + 4.0 + 0.2 + hidden + 0.2)
    assert step.traversal((4, 6)) == pytest.approx(step.way + 2 * STAGE_MS + 0.3 + 4.0 + 3.3 + 12.0)
    assert step.slowest((4, 6)) == pytest.approx(STAGE_MS + 15.3)


def test_a_chain_of_one_node_embeds_and_samples_on_it() -> None:
    step = TIMES.step((0,), rows=1)
    assert step.bases == pytest.approx((STAGE_MS + 0.1 + 0.2 + 3.0,))


def test_a_busy_link_can_be_the_slowest() -> None:
    step = TIMES.step((0, 1), rows=8)
    assert step.slowest((1, 1)) == pytest.approx(8 * 328 / 1e5 * 1e3)


@pytest.mark.parametrize(("rows", "layer"), [(1, 1.0), (2, 1.5), (3, 2.75), (4, 4.0), (6, 4.5), (8, 5.0), (16, 7.0)])
def test_times_are_linear_between_the_measured_and_beyond(rows: int, layer: float) -> None:
    assert TIMES.parts(0, rows).layer == pytest.approx(layer)


def test_fewer_rows_never_take_longer() -> None:
    times = Times(SIZE, [node("a", (1.0, 9.0, 4.0, 3.0))], [])
    assert [times.parts(0, rows).layer for rows in (1, 2, 4, 8, 100)] == [1.0, 4.0, 4.0, 4.0, 4.0]


def test_one_measured_number_of_rows_stands_for_all() -> None:
    times = Times(SIZE, [node("a", (2.0,), rows=(4,), fixed=1.0)], [])
    assert [times.parts(0, rows).layer for rows in (1, 4, 9)] == [2.0, 2.0, 2.0]


def test_an_unmeasured_link_is_as_loopback() -> None:
    step = Times(SIZE, [A, B], []).step((0, 1), rows=1)
    assert step.way == pytest.approx(HEAD_MS + 3 * 0.3 + (200 + 328 + 200) / 125e6 * 1e3)


def test_groups_are_as_few_as_their_size_allows() -> None:
    assert set(paces(7)) == {Pace(1, 7), Pace(2, 4), Pace(3, 3), Pace(4, 2), Pace(7, 1)}
    assert set(paces(1)) == {Pace(1, 1)}


def test_users_fill_the_chain() -> None:
    even = [node(name, 1.0, fixed=0.0, embed=0.0, head=0.0, by_row=0.0) for name in "ab"]
    times = Times(model(20), even, network("ab", latency_ms=0.0))
    one, two, four = (times.predict((0, 1), (10, 10), users, Wish()) for users in (1, 2, 4))
    assert one.one_user == one.many_users == pytest.approx(1e3 / (20 + HEAD_MS + 2 * STAGE_MS), rel=1e-3)
    assert two.many_users == pytest.approx(2 * one.many_users)  # a stage each, all the time
    assert four.many_users == pytest.approx(2 * two.many_users, rel=1e-3)  # more rows cost next to nothing here
    assert two.users == 2 and two.one_user == one.one_user


def test_a_prompt_comes_in_chunks_that_overlap_on_stages() -> None:
    by_row = node("a", 1.0, fixed=0.0, embed=0.0, head=50.0, by_row=1.0)
    other = by_row.model_copy(update={"id": "b"})
    links = network("ab", latency_ms=0.0, bytes_per_second=1e12)
    times = Times(model(2), [by_row, other], links)

    def first_token(nodes: tuple[int, ...], layers: tuple[int, ...], **wish: int) -> float:
        return times.predict(nodes, layers, 1, Wish(**wish)).first_token_ms

    # one row goes through the head matrix, however long the prompt; every chunk costs what a stage takes beside it
    rest = 50 + HEAD_MS
    assert first_token((0,), (2,), prompt=100, token_budget=100) == pytest.approx(200 + STAGE_MS + rest, rel=1e-3)
    assert first_token((0,), (2,), prompt=100, token_budget=25) == pytest.approx(200 + 4 * STAGE_MS + rest, rel=1e-3)
    # best in eight chunks of 13 rows: nine times 13 ms
    whole = first_token((0, 1), (1, 1), prompt=100, token_budget=100)
    assert whole == pytest.approx(9 * (13 + STAGE_MS) + rest, rel=1e-3)
    assert first_token((0, 1), (1, 1), prompt=100, token_budget=5) == pytest.approx(
        21 * (5 + STAGE_MS) + rest, rel=0.02
    )
