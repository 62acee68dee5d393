"""Secrets stay in the Redis store."""

from __future__ import annotations

import pytest

from tests.stores.shared.canaries import Canaries, CanariesOnTheCommandLine

pytestmark = pytest.mark.redis

UNREACHABLE = "redis://someone:{password}@127.0.0.1:{port}/0"


class TestCanaries(Canaries):
    """On this store."""

    unreachable = UNREACHABLE


class TestCanariesOnTheCommandLine(CanariesOnTheCommandLine):
    """On this store."""

    unreachable = UNREACHABLE
