"""The registry of workers: what it leaves behind, and what other software wrote there."""

from __future__ import annotations

import pytest

from nightmail.testing.conformance.workers import FIRST, SECOND_ID, a_report
from tests.stores.redis.support import client, open_store

pytestmark = pytest.mark.redis


async def test_only_the_last_consumer_of_each_queue_is_left_of_workers_that_have_signed_off(
    redis_url: str,
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        before = set(await own.keys("*"))
        for id_ in (FIRST, SECOND_ID, FIRST):
            await store.report(a_report(id_))
        # Reports write nothing else.
        assert set(await own.keys("*")) - before == {b"{nightmail}:workers", b"{nightmail}:seen"}

        for id_ in (FIRST, SECOND_ID):
            await store.sign_off(id_)

        assert set(await own.keys("*")) - before == {b"{nightmail}:consumers"}
        assert set(await own.hkeys("{nightmail}:consumers")) == {b"orders", "żółć".encode()}


async def test_a_last_consumer_that_cannot_be_read_is_left_out_and_replaced(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await own.hset("{nightmail}:consumers", mapping={"mail": "no time", "refunds": "17", "odd": ""})
        assert await store.last_consumers() == {}

        await store.report(a_report(FIRST, queues=("mail",)))
        await store.sign_off(FIRST)

        assert set(await store.last_consumers()) == {"mail"}
        assert await own.hkeys("{nightmail}:consumers") == [b"mail"]


@pytest.mark.parametrize("value", [b"", b"17 not JSON", b"17 []", b'17 {"host":"h"}', b"\xff"])
async def test_a_worker_that_cannot_be_read_is_left_out_and_heals_with_its_next_report(
    redis_url: str, value: bytes
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.report(a_report(FIRST))
        await store.report(a_report(SECOND_ID))
        await own.hset("{nightmail}:workers", FIRST, value)
        assert [worker.id for worker in await store.workers()] == [SECOND_ID]
        assert (await store.last_consumers()).keys() == {"orders", "żółć"}

        await store.report(a_report(FIRST))

        assert [worker.id for worker in await store.workers()] == [FIRST, SECOND_ID]


async def test_what_is_no_json_is_refused_before_anything_is_written(redis_url: str) -> None:
    async with open_store(redis_url) as store:
        with pytest.raises(TypeError):
            await store.report(a_report(state={"handler": object()}))

        assert await store.workers() == []
