"""Whatever is done in whatever order, the Redis store answers as the memory store does."""

from __future__ import annotations

import pytest

from tests.model.machine import run_model
from tests.stores.redis.support import RedisHarness, client

pytestmark = pytest.mark.redis


class EmptiedHarness(RedisHarness):
    """One database for all that is tried in it."""

    async def make_empty(self) -> None:
        async with client(self.url) as own:
            await own.flushdb()


def test_redis_answers_as_the_memory_store_does(redis_url: str) -> None:
    run_model(lambda: EmptiedHarness(redis_url))
