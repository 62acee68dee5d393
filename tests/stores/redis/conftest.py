"""The database that the shared tests use."""

from __future__ import annotations

import pytest

from testkit.servers.redis import Redis
from tests.stores.redis.support import RedisBackend


@pytest.fixture
def backend(redis_server: Redis, redis_url: str) -> RedisBackend:
    return RedisBackend(redis_url, redis_server)
