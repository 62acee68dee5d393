"""The server's clock decides what is due, whatever ours says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testkit.servers.redis import Redis
from tests.stores.redis.support import open_store
from tests.stores.shared.server_clocks import check_that_the_servers_clock_decides, two_hours_ahead

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with two_hours_ahead(lambda environment: Redis(environment=environment)) as server:
        yield server


async def test_what_is_due_is_due_by_the_servers_clock(server: Redis) -> None:
    async with open_store(server.url) as store:
        await check_that_the_servers_clock_decides(store)
