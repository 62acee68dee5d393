"""Helpers for the tests of dead letters."""

from __future__ import annotations

import pytest

from nightmail.message import DeadDelivery
from nightmail.outcome import Postpone, Release, Retry
from nightmail.records import DeadLetter
from nightmail.store import Claimed, FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    LEASE,
    QUEUE,
    SECOND,
    bury,
    claim_letter,
    fresh_token,
    message,
)

whatever_brings_back = pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(Retry(), id="retry now"),
        pytest.param(Retry(SECOND * 10, "TimeoutError()"), id="retry soon"),
        pytest.param(Postpone(SECOND * 10), id="postpone"),
        pytest.param(Release(), id="release"),
    ],
)


async def three_letters(store: FullStore, clock: ManualClock) -> list[DeadLetter]:
    """Three dead letters, one second apart, the highest priority last; the last died a second ago."""
    letters = []
    for priority, body in enumerate((b"first", b"second", b"third")):
        letters.append(await bury(store, message(body, priority=priority)))
        clock.advance(SECOND)
    return letters


async def taken_over(
    store: FullStore, other: FullStore, clock: ManualClock
) -> tuple[DeadDelivery, DeadDelivery]:
    """A dead letter twice: as `store` still believes it holds it, and as `other` now holds it."""
    await bury(store, message())
    late = await claim_letter(store, lease=LEASE)
    clock.advance(LEASE)
    return late, await claim_letter(other, lease=LEASE)


async def look(store: FullStore, *, limit: int = 100, lease_seconds: int = 30) -> Claimed:
    """A claim of the usual queue's dead letters, with what it says about the next look."""
    return await store.claim_dead([QUEUE], limit=limit, lease=SECOND * lease_seconds, token=fresh_token())
