"""Stopping while the server does not answer."""

from __future__ import annotations

import pytest

from testkit.servers.redis import Redis
from tests.stores.frozen import stops_in_time

pytestmark = pytest.mark.redis


async def test_a_server_that_hangs_does_not_hang_the_shutdown(redis_server: Redis, redis_url: str) -> None:
    await stops_in_time(redis_url, redis_server)
