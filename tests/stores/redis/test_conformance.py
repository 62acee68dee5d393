"""The Redis store keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from nightmail.testing.conformance import Harness, StoreConformance
from testkit.servers.redis import Redis
from tests.stores.documented_rights import ROLES
from tests.stores.redis.support import RedisHarness, account

pytestmark = pytest.mark.redis


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server_url(redis_server: Redis) -> AsyncIterator[str]:
    """The server as stores see it: with the rights that the documentation gives all roles together."""
    redis_server.revive()
    async with account(redis_server.url, *ROLES) as url:
        yield url


class TestRedis(StoreConformance):
    """On a single server."""

    @pytest.fixture
    def harness(self, server_url: str, redis_url: str) -> Harness:
        return RedisHarness(urlsplit(server_url)._replace(path=urlsplit(redis_url).path).geturl())
