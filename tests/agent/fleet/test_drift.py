from __future__ import annotations

from agent.fleet.head.drift import DriftWatch, Look


def looks(
    watch: DriftWatch, compute_ms: float, count: int, *, start: int = 0, rows: int = 2, steps: int = 60
) -> list[list[str]]:
    """What comes of looks ten seconds apart at a chain whose second node takes so long; 5 ms were predicted."""

    def look(n: int) -> list[str]:
        seen = Look(steps * n, rows * steps * n, (5.0, compute_ms))
        return watch.look("chain", ["a", "b"], seen, lambda rows: (5.0, 5.0), 10.0 * n)

    return [look(n) for n in range(start, start + count)]


def test_a_node_that_takes_longer_for_a_while_is_measured_again_once() -> None:
    watch = DriftWatch()
    assert looks(watch, 9.0, 10) == [[], [], [], ["b"], *([[]] * 6)]
    assert looks(watch, 9.0, 60, start=10).index(["b"]) == 53  # ten minutes later, if it still does not fit


def test_a_faster_one_too() -> None:
    assert looks(DriftWatch(), 3.0, 4)[-1] == ["b"]


def test_what_fits_within_a_half_is_left_alone() -> None:
    assert not any(looks(DriftWatch(), 7.4, 20)) and not any(looks(DriftWatch(), 3.4, 20))


def test_one_look_in_between_that_fits_starts_the_count_again() -> None:
    watch = DriftWatch()
    assert not any(looks(watch, 9.0, 3) + looks(watch, 5.0, 1, start=3) + looks(watch, 9.0, 2, start=4))


def test_nothing_is_said_of_idle_chains_or_prompts() -> None:
    assert not any(looks(DriftWatch(), 50.0, 20, steps=10))
    assert not any(looks(DriftWatch(), 50.0, 20, rows=40))


def test_a_chain_that_is_gone_is_forgotten() -> None:
    watch = DriftWatch()
    looks(watch, 9.0, 3)
    watch.forget([])
    assert looks(watch, 9.0, 1, start=3) == [[]]
