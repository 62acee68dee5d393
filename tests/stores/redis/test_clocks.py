"""The server's clock decides what is due, whatever ours says."""

from __future__ import annotations

import pytest

from testkit.servers.redis import Redis
from tests.stores.redis.support import RedisBackend
from tests.stores.shared.server_clocks import ServerClocks

pytestmark = pytest.mark.redis


class TestServerClocks(ServerClocks):
    """On this store."""

    server = Redis
    described_by = RedisBackend
