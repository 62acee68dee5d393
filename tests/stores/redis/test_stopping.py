"""Requests to stop a message: outside its hash, which a caller's MULTI watches."""

from __future__ import annotations

from datetime import timedelta

import pytest

from nightmail.errors import NightmailError
from nightmail.outcome import WriteResult
from nightmail.testing.conformance.build import LEASE, message
from tests.stores.redis.support import client, open_store, transaction
from tests.stores.support import claim, done

pytestmark = pytest.mark.redis

STOPS = "{nightmail:orders}:stops"


async def test_a_request_to_stop_does_not_refuse_a_transaction_that_acknowledges_the_message(
    redis_url: str,
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish(message())
        (delivery,) = await claim(store)

        async with transaction(store, [delivery], own) as pipe:
            pipe.set("theirs", "written")
            assert await store.request_stop(delivery.id, by="ann") is True

        assert await own.get("theirs") == b"written"
        assert await store.stats() == {}


async def test_a_sweep_removes_requests_for_messages_that_are_gone_and_no_others(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish_batch([message(), message()])
        gone, stays = await claim(store)
        for delivery in (gone, stays):
            await store.request_stop(delivery.id, by="ann")
        await done(store, [gone])

        await store.sweep(older_than=timedelta(days=1), limit=100)

        assert await own.hkeys(STOPS) == [b"%016x" % stays.id]
        assert await store.extend([stays], LEASE) == [WriteResult.STOP]


async def test_a_key_of_another_type_in_place_of_the_requests_refuses_an_extension_and_leaves_the_lease(
    redis_url: str,
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish(message(timer_id="t"))
        (delivery,) = await claim(store)
        await own.set(STOPS, "not ours")

        with pytest.raises(NightmailError):
            await store.extend([delivery], LEASE)
        with pytest.raises(NightmailError):
            await store.request_stop(delivery.id, by="ann")
        await own.delete(STOPS)

        assert await store.extend([delivery], LEASE) == [WriteResult.WRITTEN]
