"""How far ahead to fetch, on a clock of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightmail.engine.prefetch import Prefetch
from tests.unit.support import brisk


def pace(workers: int, *runs: float, now: float = 0.0) -> Prefetch:
    """What was learned from these runs, the last start being now."""
    learned = Prefetch()
    learned.started(now, workers)
    for seconds in runs:
        learned.ran(seconds)
    return learned


def test_who_knows_nothing_fetches_nothing_ahead() -> None:
    assert Prefetch().ahead(0.0) == 0


@pytest.mark.parametrize(
    ("workers", "seconds", "expected"),
    [
        (10, 60.0, 0),
        (10, 1.0, 2),
        (10, 0.1, 20),
        (1, 0.1, 2),
        (100, 1.0, 20),
        (10, 0.001, 2000),
        (10, 0.0, 2000),
        (1, 0.0001, 2000),
        (1, 0.001, 200),
    ],
)
def test_as_much_is_fetched_as_starts_within_a_fifth_of_a_second(
    workers: int, seconds: float, expected: int
) -> None:
    assert pace(workers, seconds).ahead(0.0) == expected


def test_runs_that_end_in_the_same_moment_are_not_taken_for_quick_ones() -> None:
    assert pace(10, *[1.0] * 10).ahead(0.0) == 2


def test_more_at_once_is_believed_at_once_and_fewer_by_and_by() -> None:
    learned = pace(1, 0.01)
    assert learned.ahead(0.0) == 20

    learned.started(0.0, 10)
    assert learned.ahead(0.0) == 200

    learned.started(0.0, 1)
    assert learned.ahead(0.0) == 182
    for _ in range(100):
        learned.started(0.0, 1)
    assert learned.ahead(0.0) == 20


def test_newer_runs_count_more_than_older_ones() -> None:
    slow_then_quick = pace(10, *[1.0] * 50, *[0.01] * 50)
    quick_then_slow = pace(10, *[0.01] * 50, *[1.0] * 50)

    assert slow_then_quick.ahead(0.0) > 100
    assert quick_then_slow.ahead(0.0) == 2


def test_while_nothing_new_could_start_less_is_worth_fetching() -> None:
    quick = pace(10, 0.001, now=50.0)

    assert quick.ahead(50.0) == 2000
    assert quick.ahead(50.5) == 4
    assert quick.ahead(52.5) == 0


@brisk
@given(
    workers=st.integers(min_value=1, max_value=10_000),
    runs=st.lists(st.floats(min_value=0.0, max_value=1e6)),
    waited=st.floats(min_value=0.0, max_value=1e6),
)
def test_what_is_fetched_ahead_is_always_bounded(workers: int, runs: list[float], waited: float) -> None:
    assert 0 <= pace(workers, *runs).ahead(waited) <= 2000
