"""Retry policies: what follows a failed run."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightmail.durations import as_positive, as_timedelta
from nightmail.outcome import Dead, Outcome, Retry
from nightmail.retry import ConstantRetry, ExponentialRetry, LinearRetry, NoRetry, RetryPolicy
from tests.unit.support import brisk, delivery

ERROR = ConnectionError("down")
EXHAUSTED = Dead("retries_exhausted")


def after(policy: RetryPolicy, attempt: int) -> Outcome:
    """What follows when this run failed, counted from 1."""
    return policy(delivery(attempts=attempt - 1), ERROR)


def seconds(policy: RetryPolicy, attempts: int) -> list[float]:
    """The delays after the first so many runs."""
    delays = []
    for attempt in range(1, attempts + 1):
        outcome = after(policy, attempt)
        assert isinstance(outcome, Retry)
        delays.append(outcome.after.total_seconds())
    return delays


def test_the_default_doubles_from_one_second_to_five_minutes_and_gives_up_after_ten_runs() -> None:
    policy = ExponentialRetry(chance=lambda: 0.5)

    assert seconds(policy, 9) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert after(policy, 10) == EXHAUSTED
    assert after(policy, 11) == EXHAUSTED


def test_the_defaults_are_what_the_documentation_says() -> None:
    policy = ExponentialRetry()

    assert policy.initial == timedelta(seconds=1)
    assert policy.factor == 2.0
    assert policy.maximum == timedelta(minutes=5)
    assert policy.jitter == 0.2
    assert policy.max_attempts == 10


@pytest.mark.parametrize(("chance", "expected"), [(0.0, 8.0), (0.25, 9.0), (0.5, 10.0), (0.75, 11.0)])
def test_jitter_strays_by_its_share_either_way(chance: float, expected: float) -> None:
    [delay] = seconds(ConstantRetry(delay=10, jitter=0.2, chance=lambda: chance), 1)

    assert delay == pytest.approx(expected)


def test_jitter_never_exceeds_the_maximum() -> None:
    policy = ExponentialRetry(maximum=20, jitter=1.0, max_attempts=None, chance=lambda: 0.999)

    assert seconds(policy, 6)[-2:] == [20.0, 20.0]


def test_a_linear_policy_adds_a_step_each_time() -> None:
    policy = LinearRetry(initial=2, step=3, maximum=10, jitter=0.0)

    assert seconds(policy, 5) == [2, 5, 8, 10, 10]


def test_a_constant_policy_waits_the_same_each_time() -> None:
    assert seconds(ConstantRetry(delay=7, jitter=0.0), 3) == [7, 7, 7]


def test_a_constant_delay_is_bounded_only_where_that_was_asked_for() -> None:
    assert seconds(ConstantRetry(delay=7000, jitter=0.0), 1) == [7000]
    assert seconds(ConstantRetry(delay=7000, maximum=300, jitter=0.0), 1) == [300]


def test_without_a_maximum_a_delay_still_ends_within_ten_years() -> None:
    policy = ExponentialRetry(maximum=None, jitter=1.0, max_attempts=None, chance=lambda: 0.999)

    assert after(policy, 100_000) == Retry(timedelta(days=3650))


def test_no_retry_gives_up_after_the_first_run() -> None:
    assert after(NoRetry(), 1) == EXHAUSTED


@pytest.mark.parametrize("policy", [ExponentialRetry, LinearRetry, ConstantRetry])
def test_one_run_in_all_means_no_retry(policy: type[ExponentialRetry]) -> None:
    assert after(policy(max_attempts=1), 1) == EXHAUSTED


@pytest.mark.parametrize("policy", [ExponentialRetry, LinearRetry, ConstantRetry])
def test_without_a_limit_it_never_gives_up(policy: type[ExponentialRetry]) -> None:
    outcome = after(policy(max_attempts=None), 1_000_000)

    assert isinstance(outcome, Retry)


def test_no_attempt_number_overflows() -> None:
    policy = ExponentialRetry(max_attempts=None, jitter=0.0)

    assert after(policy, 100_000) == Retry(timedelta(minutes=5))
    assert after(ExponentialRetry(factor=1e300, max_attempts=None, jitter=0.0), 3) == Retry(
        timedelta(minutes=5)
    )


durations = st.floats(min_value=0.0, max_value=1e9)
jitters = st.floats(min_value=0.0, max_value=1.0)
chances = st.floats(min_value=0.0, max_value=1.0, exclude_max=True)
attempts = st.integers(min_value=1, max_value=100_000)


@brisk
@given(
    initial=durations,
    maximum=durations,
    factor=st.floats(min_value=1.0, max_value=1e6),
    jitter=jitters,
    chance=chances,
    attempt=attempts,
)
def test_an_exponential_delay_is_never_negative_and_never_beyond_the_maximum(
    initial: float, maximum: float, factor: float, jitter: float, chance: float, attempt: int
) -> None:
    policy = ExponentialRetry(
        initial=initial,
        maximum=maximum,
        factor=factor,
        jitter=jitter,
        max_attempts=None,
        chance=lambda: chance,
    )
    outcome = after(policy, attempt)

    assert isinstance(outcome, Retry)
    assert timedelta(0) <= outcome.after <= as_timedelta("maximum", maximum)


@brisk
@given(initial=durations, step=durations, maximum=durations, jitter=jitters, chance=chances, attempt=attempts)
def test_a_linear_delay_is_never_negative_and_never_beyond_the_maximum(
    initial: float, step: float, maximum: float, jitter: float, chance: float, attempt: int
) -> None:
    policy = LinearRetry(
        initial=initial,
        step=step,
        maximum=maximum,
        jitter=jitter,
        max_attempts=None,
        chance=lambda: chance,
    )
    outcome = after(policy, attempt)

    assert isinstance(outcome, Retry)
    assert timedelta(0) <= outcome.after <= as_timedelta("maximum", maximum)


@brisk
@given(max_attempts=st.integers(min_value=1, max_value=50), attempt=st.integers(min_value=1, max_value=100))
def test_a_handler_runs_exactly_as_often_as_allowed(max_attempts: int, attempt: int) -> None:
    outcome = after(ConstantRetry(max_attempts=max_attempts), attempt)

    assert (outcome == EXHAUSTED) == (attempt >= max_attempts)


@pytest.mark.parametrize(
    ("policy", "parameters", "message"),
    [
        (ExponentialRetry, {"initial": -1}, "initial must not be negative, not -1"),
        (ExponentialRetry, {"maximum": timedelta(seconds=-1)}, "maximum must not be negative"),
        (ExponentialRetry, {"factor": 0.5}, "factor must be at least 1, not 0.5"),
        (ExponentialRetry, {"factor": math.nan}, "factor must be at least 1, not nan"),
        (ExponentialRetry, {"factor": math.inf}, "factor must be at least 1, not inf"),
        (ExponentialRetry, {"jitter": 1.1}, "jitter must be 0 to 1, not 1.1"),
        (ExponentialRetry, {"jitter": -0.1}, "jitter must be 0 to 1, not -0.1"),
        (ExponentialRetry, {"jitter": math.nan}, "jitter must be 0 to 1, not nan"),
        (
            ExponentialRetry,
            {"max_attempts": 0},
            "max_attempts must be at least 1, or None for no limit, not 0",
        ),
        (LinearRetry, {"step": -1}, "step must not be negative"),
        (LinearRetry, {"initial": -1}, "initial must not be negative"),
        (ConstantRetry, {"delay": -1}, "delay must not be negative"),
        (ConstantRetry, {"delay": math.inf}, "delay must be finite, not inf"),
        (ConstantRetry, {"delay": 1e300}, "delay is too long"),
    ],
)
def test_bad_parameters_are_refused(policy: type, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy(**parameters)


@pytest.mark.parametrize("value", ["5", None, True, [1]])
def test_a_duration_is_a_timedelta_or_a_number(value: Any) -> None:
    with pytest.raises(
        TypeError, match=f"delay must be a timedelta or a number of seconds, not {type(value).__name__}"
    ):
        as_timedelta("delay", value)


def test_a_number_is_seconds() -> None:
    assert as_timedelta("delay", 90) == timedelta(minutes=1, seconds=30)
    assert as_timedelta("delay", 0.25) == timedelta(milliseconds=250)
    assert as_timedelta("delay", timedelta(hours=1)) == timedelta(hours=1)
    assert as_timedelta("delay", -1) == timedelta(seconds=-1)


@pytest.mark.parametrize("value", [0, -0.1, timedelta(0), timedelta(seconds=-1)])
def test_what_must_last_must_be_longer_than_nothing(value: float | timedelta) -> None:
    with pytest.raises(ValueError, match="delay must be positive"):
        as_positive("delay", value)


def test_what_is_longer_than_nothing_lasts() -> None:
    assert as_positive("delay", 0.000_001) == timedelta(microseconds=1)
