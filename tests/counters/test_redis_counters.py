"""What a message costs on Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nightmail import OutboxBroker
from nightmail.stores.redis import RedisStore
from nightmail.testing.clock import ManualClock
from tests.counters.baseline import compare
from tests.counters.connections import assert_few_connections
from tests.counters.functions import Functions
from tests.counters.idle import assert_frugal_while_idle
from tests.counters.servers import RedisMeter
from tests.counters.verbs import Place, costs
from tests.golden.record import Record
from tests.golden.wire_formats import RedisWire
from tests.golden.wiretap import tapped
from tests.stores.redis.support import client
from tests.stores.support import opened

pytestmark = pytest.mark.redis


async def test_what_a_message_costs_on_redis_is_what_is_written_down(redis_url: str) -> None:
    store = RedisStore(redis_url, clock=ManualClock())
    async with client(redis_url) as own, opened(store), OutboxBroker(store, logger=None) as broker:

        @asynccontextmanager
        async def pipeline() -> AsyncIterator[Any]:
            async with own.pipeline(transaction=True) as pipe:
                yield pipe
                await pipe.execute()

        found = await costs(Place(broker, pipeline, RedisMeter(own)), Functions())
        version = (await own.info("server"))["redis_version"]

    compare("redis", f"Redis {version.partition('.')[0]}", found)


async def test_idle_subscribers_on_redis_share_one_look_every_five_seconds(redis_url: str) -> None:
    async with OutboxBroker(redis_url, create_tables=True, logger=None):
        pass
    record = Record()
    with tapped(redis_url, record, RedisWire) as url:
        await assert_frugal_while_idle("redis", url, record)


@pytest.mark.parametrize("subscribers", [1, 10])
async def test_the_number_of_connections_to_redis_does_not_grow_with_the_subscribers(
    redis_url: str, subscribers: int
) -> None:
    record = Record()
    with tapped(redis_url, record, RedisWire) as url:
        await assert_few_connections("redis", url, record, subscribers)
