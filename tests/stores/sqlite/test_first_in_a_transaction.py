"""A verb that comes first in a caller's transaction, before which the driver has not begun it: it is part of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from nightmail.store import Blocking
from nightmail.stores.sqlite import SQLiteStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.blocking import at_once
from nightmail.testing.conformance.build import AT_ONCE, HOUR, QUEUE, message
from tests.stores.shared.backend import Begin, BeginBlocking, ChangedMyMind
from tests.stores.sqlite.support import BLOCKING_CALLERS, CALLERS, SQLiteBackend

pytestmark = pytest.mark.sqlite

# What each verb makes of a message `old` with the timer id `a`, due now: the bodies that wait then, due in how long.
OLD = (b"old", AT_ONCE)
VERBS: dict[str, tuple[Any, list[tuple[bytes, timedelta]]]] = {
    "publish": (
        lambda store, given: store.publish(message(b"new"), transaction=given),
        [OLD, (b"new", AT_ONCE)],
    ),
    "publish a timer": (
        lambda store, given: store.publish(message(b"new", timer_id="b"), transaction=given),
        [OLD, (b"new", AT_ONCE)],
    ),
    "replace": (
        lambda store, given: store.publish(
            message(b"new", timer_id="a", on_conflict="replace"), transaction=given
        ),
        [(b"new", AT_ONCE)],
    ),
    "publish_batch": (
        lambda store, given: store.publish_batch([message(b"1"), message(b"2")], transaction=given),
        [OLD, (b"1", AT_ONCE), (b"2", AT_ONCE)],
    ),
    "cancel": (lambda store, given: store.cancel(QUEUE, "a", transaction=given), []),
    "cancel_all": (lambda store, given: store.cancel_all(QUEUE, transaction=given), []),
    "reschedule": (
        lambda store, given: store.reschedule(QUEUE, "a", HOUR, transaction=given),
        [(b"old", HOUR)],
    ),
}


@pytest.fixture(params=VERBS.values(), ids=list(VERBS))
def verb(request: pytest.FixtureRequest) -> Any:
    return request.param[0]


@pytest.fixture
def afterwards(request: pytest.FixtureRequest, verb: Any) -> list[tuple[bytes, timedelta]]:
    (expected,) = [expected for each, expected in VERBS.values() if each is verb]
    return expected


async def waiting(store: SQLiteStore, clock: ManualClock) -> list[tuple[bytes, timedelta]]:
    return [(pending.body, pending.due_at - clock.now()) for pending in await store.peek()]


@pytest.mark.parametrize("begin", CALLERS.values(), ids=list(CALLERS))
async def test_it_is_committed_or_rolled_back_with_the_transaction(
    store: SQLiteStore, clock: ManualClock, backend: SQLiteBackend, begin: Begin, verb: Any, afterwards: Any
) -> None:
    await store.publish(message(b"old", timer_id="a"))
    with pytest.raises(ChangedMyMind):
        async with begin(backend.url) as transaction:
            await verb(store, transaction)
            raise ChangedMyMind
    assert await waiting(store, clock) == [OLD]

    async with begin(backend.url) as transaction:
        await verb(store, transaction)

    assert await waiting(store, clock) == afterwards


@pytest.mark.parametrize("begin", BLOCKING_CALLERS.values(), ids=list(BLOCKING_CALLERS))
async def test_it_is_committed_or_rolled_back_with_the_transaction_of_synchronous_code(
    store: SQLiteStore,
    clock: ManualClock,
    backend: SQLiteBackend,
    begin: BeginBlocking,
    verb: Any,
    afterwards: Any,
) -> None:
    await store.publish(message(b"old", timer_id="a"))
    with pytest.raises(ChangedMyMind), begin(backend.url) as session:
        at_once(verb(store, Blocking(session)))
        raise ChangedMyMind
    assert await waiting(store, clock) == [OLD]

    with begin(backend.url) as session:
        at_once(verb(store, Blocking(session)))

    assert await waiting(store, clock) == afterwards
