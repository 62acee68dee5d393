"""Going on after the server was away."""

from __future__ import annotations

import pytest

from testkit.servers.redis import Redis
from tests.stores.redis.support import open_store
from tests.stores.resuming import goes_on_soon_after

pytestmark = pytest.mark.redis


async def test_a_worker_goes_on_soon_after_its_server_is_back(redis_server: Redis, redis_url: str) -> None:
    async with open_store(redis_url) as store:
        await goes_on_soon_after(store, redis_server)
