"""What an idle process is told of many queues at once: never later than a claim would find something."""

from __future__ import annotations

from datetime import timedelta

import pytest

from nightmail.outcome import Retry
from nightmail.store import LooksAhead
from nightmail.stores.postgres import PostgresStore
from nightmail.stores.postgres.claiming import WINDOW
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import MINUTE, SECOND, claim_all, message, settle_one
from tests.stores.support import opened

pytestmark = pytest.mark.postgres
NOW = timedelta(0)
QUEUES = ("a", "b", "c")


async def test_a_look_ahead_tells_of_each_queue_when_something_can_be_claimed(postgres_url: str) -> None:
    clock = ManualClock()
    store = PostgresStore(postgres_url, clock=clock)
    assert isinstance(store, LooksAhead)
    async with opened(store):
        assert await store.look_ahead(QUEUES) == {}

        await store.publish(message(queue="a"))
        await store.publish(message(queue="b", due=MINUTE, priority=3))
        await store.publish(message(queue="b", due=MINUTE - SECOND, ordering_key="key"))
        assert await store.look_ahead(QUEUES) == {"a": NOW, "b": MINUTE - SECOND}

        # It has taken nothing. What is leased can be claimed when the lease ends, and a retry when it is due.
        (taken,) = await claim_all(store, "a", lease=SECOND * 30)
        clock.advance(SECOND)
        assert await store.look_ahead(QUEUES) == {"a": SECOND * 29, "b": MINUTE - SECOND * 2}
        await settle_one(store, taken, Retry(SECOND * 7))
        assert (await store.look_ahead(["a"])) == {"a": SECOND * 7}
        clock.advance(SECOND * 8)
        assert (await store.look_ahead(["a"])) == {"a": NOW}


async def test_a_look_ahead_passes_over_what_waits_in_line_unless_the_line_is_long(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, clock=ManualClock())
    async with opened(store):
        await store.publish_batch([message(queue="a", ordering_key="key")] * 3)
        assert await store.look_ahead(["a"]) == {"a": NOW}

        assert len(await claim_all(store, "a", lease=MINUTE)) == 1
        assert await store.look_ahead(["a"]) == {"a": MINUTE}

        await store.publish_batch([message(queue="a", ordering_key="key")] * WINDOW)
        assert await store.look_ahead(["a"]) == {"a": NOW}


async def test_a_look_ahead_says_now_behind_many_that_run(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, clock=ManualClock())
    async with opened(store):
        await store.publish_batch([message(queue="a")] * WINDOW)
        await claim_all(store, "a", lease=MINUTE)

        assert await store.look_ahead(["a"]) == {"a": NOW}


async def test_a_look_ahead_expects_the_end_of_a_pause_and_nothing_before(postgres_url: str) -> None:
    clock = ManualClock()
    store = PostgresStore(postgres_url, clock=clock)
    async with opened(store):
        await store.publish(message(queue="a"))
        await store.publish(message(queue="b", ordering_key="key"))
        await store.publish(message(queue="c"))
        await store.pause("a", until=MINUTE, by="me")
        await store.pause("b", ordering_key="key", by="me")
        await store.pause("c", by="me")

        assert await store.look_ahead(QUEUES) == {"a": MINUTE}
        clock.advance(MINUTE)
        assert await store.look_ahead(QUEUES) == {"a": NOW}
