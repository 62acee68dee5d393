"""The SQLite store keeps the contract, whether its callers' transactions live in SQLAlchemy or in the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightmail.testing.conformance import Harness, StoreConformance
from nightmail.testing.conformance.blocking import BlockingConformance
from nightmail.testing.conformance.blocking_leases import BlockingLeasesConformance
from nightmail.testing.conformance.transaction import TransactionConformance
from tests.stores.sqlite.support import DriverHarness, SQLAlchemyHarness

pytestmark = pytest.mark.sqlite


class TestSQLite(StoreConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        return SQLAlchemyHarness(tmp_path)


class TestSQLiteInTheDriversTransactions(
    TransactionConformance, BlockingConformance, BlockingLeasesConformance
):
    """Only the part about callers' transactions: in everything else these callers are the same."""

    clock = StoreConformance.clock
    store = StoreConformance.store
    other = StoreConformance.other

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        return DriverHarness(tmp_path)
