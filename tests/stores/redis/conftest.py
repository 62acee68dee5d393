"""The database that the shared tests use, and a server for backlogs that are too long for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testkit.pytest_plugin import provide
from testkit.servers.redis import Redis
from tests.stores.redis.support import RedisBackend


@pytest.fixture
def backend(redis_server: Redis, redis_url: str) -> RedisBackend:
    return RedisBackend(redis_url, redis_server)


@pytest.fixture
def server_in_memory() -> Iterator[str]:
    """A server of its own, which writes nothing to the disk and takes all it has with it."""
    with provide(Redis(options={"appendonly": "no"})) as server:
        yield server.url
