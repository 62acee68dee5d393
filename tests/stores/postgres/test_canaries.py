"""Secrets stay in the Postgres store."""

from __future__ import annotations

import pytest

from tests.stores.shared.canaries import Canaries, CanariesOnTheCommandLine

pytestmark = pytest.mark.postgres

UNREACHABLE = "postgresql://someone:{password}@127.0.0.1:{port}/shop"


class TestCanaries(Canaries):
    """On this store."""

    unreachable = UNREACHABLE


class TestCanariesOnTheCommandLine(CanariesOnTheCommandLine):
    """On this store."""

    unreachable = UNREACHABLE
