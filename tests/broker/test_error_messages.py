"""Error messages for a wrong option, name or number say what to write instead."""

from __future__ import annotations

import re
from typing import Any

import pytest

from nightmail import ConstantRetry, ExponentialRetry, LinearRetry, OutboxBroker


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("max_retries", "write retry=ExponentialRetry(max_attempts=...)"),
        ("max_attempts", "write retry=ExponentialRetry(max_attempts=...)"),
        ("concurrency", "write max_workers="),
        ("max_worker", "did you mean 'max_workers'?"),
        ("colour", "no option 'colour'"),
    ],
)
def test_an_unknown_option_names_the_one_that_is_meant(option: str, hint: str) -> None:
    options: Any = {option: 3}

    with pytest.raises(TypeError, match=re.escape(hint)) as refused:
        OutboxBroker("memory://", **options)
    with pytest.raises(TypeError, match=re.escape(hint)):
        OutboxBroker("memory://").subscriber("q", **options)
    assert option == "colour" or "workers" in hint or "max_workers" not in str(refused.value)


@pytest.mark.parametrize(("option", "hint"), [("delay", "activate_in="), ("eta", "activate_at=")])
async def test_an_unknown_option_of_publish_names_the_one_that_is_meant(option: str, hint: str) -> None:
    options: Any = {option: 3}

    async with OutboxBroker("memory://", logger=None) as broker:
        with pytest.raises(TypeError, match=hint):
            await broker.publish("tea", "q", **options)


@pytest.mark.parametrize("what", ["subscriber", "publisher"])
def test_a_decorator_without_brackets_says_what_is_missing(what: str) -> None:
    async def handle(body: str) -> None: ...

    decorate: Any = getattr(OutboxBroker("memory://"), what)

    with pytest.raises(TypeError, match=re.escape(f'@broker.{what}("orders")')):
        decorate(handle)


@pytest.mark.parametrize(
    ("policy", "delay"), [(ConstantRetry, "delay"), (LinearRetry, "initial"), (ExponentialRetry, "initial")]
)
def test_a_number_for_a_policy_is_asked_for_its_name(policy: Any, delay: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"{policy.__name__}({delay}=5)")):
        policy(5)


def test_a_negative_duration_is_shown_in_seconds() -> None:
    with pytest.raises(ValueError, match="lease_ttl_seconds must be positive, not -1 s"):
        OutboxBroker("memory://", lease_ttl_seconds=-1)
