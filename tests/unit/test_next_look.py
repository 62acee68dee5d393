"""The arithmetic of waiting."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightmail.engine.next_look import Alarm, backoff, next_look
from tests.unit.support import brisk

FIVE_SECONDS = timedelta(seconds=5)


def test_backoff_doubles_and_stays_below_two_seconds() -> None:
    longest = [backoff(failures, chance=lambda: 1.0) for failures in range(1, 11)]

    assert longest == [0.1, 0.2, 0.4, 0.8, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5]


def test_backoff_strays_by_up_to_half() -> None:
    assert backoff(1, chance=lambda: 0.0) == 0.05
    assert backoff(1, chance=lambda: 0.5) == pytest.approx(0.075)
    assert backoff(100, chance=lambda: 0.0) == 0.75


@brisk
@given(failures=st.integers(min_value=1, max_value=10**9))
def test_backoff_is_always_within_its_bounds(failures: int) -> None:
    assert 0.05 <= backoff(failures) <= 1.5


def test_an_alarm_that_was_never_set_means_now() -> None:
    assert Alarm().seconds_from(123.0) == 0.0


def test_an_alarm_tells_how_long_until_then_and_never_less_than_nothing() -> None:
    alarm = Alarm()
    alarm.set(10.0)

    assert alarm.seconds_from(7.5) == 2.5
    assert alarm.seconds_from(10.0) == 0.0
    assert alarm.seconds_from(11.0) == 0.0
    alarm.at_once()
    assert alarm.seconds_from(7.5) == 0.0


@pytest.mark.parametrize(
    ("next_in", "expected"),
    [
        (None, 105.0),
        (timedelta(seconds=2), 102.0),
        (timedelta(seconds=60), 105.0),
        (timedelta(0), 100.0),
    ],
)
def test_the_next_look_is_when_something_is_due_and_at_the_latest_after_the_interval(
    next_in: timedelta | None, expected: float
) -> None:
    assert next_look(100.0, next_in, FIVE_SECONDS) == expected
