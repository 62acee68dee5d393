"""What an idle process is told of many queues at once: never later than a claim would find something."""

from __future__ import annotations

import pytest

from nightmail.stores.postgres import PostgresStore
from nightmail.stores.postgres.claiming import WINDOW
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import MINUTE, claim_all, message
from tests.stores.shared.look_ahead import NOW, LookAheadPastWhatWaits
from tests.stores.support import opened

pytestmark = pytest.mark.postgres


class TestLookAhead(LookAheadPastWhatWaits):
    """On this store."""


async def test_a_look_ahead_says_now_behind_a_long_line(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, clock=ManualClock())
    async with opened(store):
        await store.publish_batch([message(queue="a", ordering_key="key")] * (WINDOW + 3))
        assert len(await claim_all(store, "a", lease=MINUTE)) == 1

        assert await store.look_ahead(["a"]) == {"a": NOW}


async def test_a_look_ahead_says_now_behind_many_that_run(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, clock=ManualClock())
    async with opened(store):
        await store.publish_batch([message(queue="a")] * WINDOW)
        await claim_all(store, "a", lease=MINUTE)

        assert await store.look_ahead(["a"]) == {"a": NOW}


async def test_a_look_ahead_expects_nothing_of_a_key_that_is_paused(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, clock=ManualClock())
    async with opened(store):
        await store.publish(message(queue="a", ordering_key="key"))
        await store.pause("a", ordering_key="key", by="me")

        assert await store.look_ahead(["a"]) == {}
