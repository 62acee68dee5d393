"""What the SQLite store asks of the library stays as it is, unless the golden file says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.golden import compare, played
from tests.golden.naming import StatementNaming
from tests.golden.record import Record
from tests.golden.sqlite_calls import recorded
from tests.golden.stage import Database
from tests.stores.sqlite.support import DriverHarness

pytestmark = pytest.mark.sqlite


async def test_what_the_sqlite_store_sends_is_what_the_golden_file_says(tmp_path: Path) -> None:
    record = Record()
    harness = DriverHarness(tmp_path)
    database = Database(harness, harness.transaction)
    with recorded(record):
        compare("sqlite", await played(database, record), StatementNaming("sqlite"))
