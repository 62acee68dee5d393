"""Secrets stay in the MySQL store."""

from __future__ import annotations

import pytest

from tests.stores.shared.canaries import Canaries, CanariesOnTheCommandLine

pytestmark = pytest.mark.mysql

UNREACHABLE = "mysql://someone:{password}@127.0.0.1:{port}/shop"


class TestCanaries(Canaries):
    """On this store."""

    unreachable = UNREACHABLE


class TestCanariesOnTheCommandLine(CanariesOnTheCommandLine):
    """On this store."""

    unreachable = UNREACHABLE
