"""A fair sample of what comes too fast."""

from __future__ import annotations

from itertools import pairwise

from nightmail.telemetry.sampling import MOST_A_SECOND, Sampled


class Clock:
    """A clock in a test's hands."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def feed(sampled: Sampled, clock: Clock, values: range, *, a_second: int) -> None:
    """One value after the other, evenly."""
    for value in values:
        sampled(value)
        clock.seconds += 1 / a_second


def test_what_comes_slowly_is_recorded_whole() -> None:
    clock, recorded = Clock(), list[float]()

    feed(Sampled(recorded.append, clock), clock, range(500), a_second=50)

    assert recorded == list(range(500))


def test_what_comes_fast_is_recorded_in_even_steps() -> None:
    clock, recorded = Clock(), list[float]()
    sampled = Sampled(recorded.append, clock)
    feed(sampled, clock, range(5000), a_second=4096)
    recorded.clear()

    feed(sampled, clock, range(4096), a_second=4096)

    steps = {later - earlier for earlier, later in pairwise(recorded)}
    assert 90 <= len(recorded) <= MOST_A_SECOND + 1
    # One step is cut short where a new second begins.
    assert max(steps) == 41
    assert len(steps) <= 2


def test_after_a_rest_it_is_whole_again() -> None:
    clock, recorded = Clock(), list[float]()
    sampled = Sampled(recorded.append, clock)
    feed(sampled, clock, range(5000), a_second=4096)
    clock.seconds += 3600
    recorded.clear()

    feed(sampled, clock, range(100), a_second=1)

    assert recorded == list(range(100))


def test_a_burst_is_not_recorded_whole_either() -> None:
    clock, recorded = Clock(), list[float]()

    feed(Sampled(recorded.append, clock), clock, range(50_000), a_second=100_000)

    assert recorded[:3] == [0, 1, 2]
    assert len(recorded) < 1200
    assert recorded[-1] > 49_000
