"""A wrong setting never reaches a running worker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from nightmail.engine.settings import WorkerSettings
from nightmail.retry import ExponentialRetry, NoRetry


def test_the_defaults_are_what_the_documentation_says() -> None:
    settings = WorkerSettings()

    assert settings.max_workers == 10
    assert settings.lease == timedelta(seconds=20)
    assert settings.retry == ExponentialRetry()
    assert settings.max_deliveries == 10
    assert settings.handler_timeout == timedelta(hours=1)
    assert settings.give_up_after is None
    assert settings.graceful_timeout == timedelta(seconds=15)
    assert settings.describe_error(ValueError("x")) == "ValueError('x')"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_workers": 0}, "max_workers must be at least 1, not 0"),
        ({"max_deliveries": -1}, "max_deliveries must be at least 1, not -1"),
        ({"lease": timedelta(milliseconds=50)}, "lease must be longer than 0.05 s"),
        ({"handler_timeout": timedelta(0)}, "handler_timeout must be longer than 0 s"),
        ({"give_up_after": timedelta(0)}, "give_up_after must be longer than 0 s"),
        ({"graceful_timeout": timedelta(seconds=-1)}, "graceful_timeout must not be negative"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WorkerSettings(**setting)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_workers": True}, "max_workers must be a whole number, not bool"),
        ({"max_workers": 2.0}, "max_workers must be a whole number, not float"),
        ({"max_deliveries": "3"}, "max_deliveries must be a whole number, not str"),
        ({"retry": 3}, "retry must be a policy such as ExponentialRetry\\(\\), not int"),
        ({"retry": ExponentialRetry}, "retry must be a policy, not its class: ExponentialRetry\\(\\)"),
    ],
)
def test_values_of_another_kind_are_refused_by_name(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        WorkerSettings(**setting)


def test_the_smallest_values_that_work_are_accepted() -> None:
    settings = WorkerSettings(
        max_workers=1,
        max_deliveries=1,
        lease=timedelta(milliseconds=51),
        handler_timeout=timedelta(microseconds=1),
        graceful_timeout=timedelta(0),
        retry=NoRetry(),
    )

    assert settings.graceful_timeout == timedelta(0)
