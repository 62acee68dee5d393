"""The Redis store keeps the contract."""

from __future__ import annotations

import pytest

from nightmail.testing.conformance import Harness, StoreConformance
from tests.stores.redis_support import RedisHarness

pytestmark = pytest.mark.redis


class TestRedis(StoreConformance):
    """On a single server."""

    @pytest.fixture
    def harness(self, redis_url: str) -> Harness:
        return RedisHarness(redis_url)
