"""What the Redis store sends to a single server stays as it is, unless the golden file says otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from nightmail.message import Delivery
from nightmail.store import FullStore
from nightmail.stores.redis import RedisStore
from tests.golden.golden import compare, played
from tests.golden.naming import ScriptNaming
from tests.golden.record import Record
from tests.golden.stage import Database
from tests.golden.wire_formats import RedisWire
from tests.golden.wiretap import tapped
from tests.stores.redis.support import RedisHarness, client, transaction

pytestmark = pytest.mark.redis


async def test_what_the_redis_store_sends_is_what_the_golden_file_says(redis_url: str) -> None:
    record = Record()
    with tapped(redis_url, record, RedisWire) as url:
        database = Database(RedisHarness(url), partial(pipeline, url), partial(acknowledging, url))
        compare("redis", await played(database, record), ScriptNaming())


@asynccontextmanager
async def pipeline(url: str) -> AsyncIterator[Any]:
    """A caller's MULTI."""
    async with client(url) as own:
        await own.ping()
        async with own.pipeline(transaction=True) as pipe:
            yield pipe
            await pipe.execute()


@asynccontextmanager
async def acknowledging(url: str, store: FullStore, deliveries: Sequence[Delivery]) -> AsyncIterator[Any]:
    """The pipeline at whose end these messages are done."""
    assert isinstance(store, RedisStore)
    async with client(url) as own, transaction(store, deliveries, own) as pipe:
        yield pipe
