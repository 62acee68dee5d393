"""What the MySQL store sends to MariaDB stays as it is, unless the golden file says otherwise."""

from __future__ import annotations

import pytest

from nightmail.stores.mysql import MySQLStore
from tests.golden.golden import compare, played
from tests.golden.naming import StatementNaming
from tests.golden.record import Record
from tests.golden.stage import Database
from tests.golden.wire_formats import MySQLWire
from tests.golden.wiretap import tapped
from tests.stores.mysql.support import DriverHarness

pytestmark = pytest.mark.mysql


async def test_what_the_mysql_store_sends_is_what_the_golden_file_says(mysql_url: str) -> None:
    record = Record()
    with tapped(mysql_url, record, MySQLWire) as url:
        harness = DriverHarness(url)
        # No statement is prepared: it need not be sent once before.
        database = Database(
            harness, harness.transaction, by_the_servers_clock=lambda: MySQLStore(url), rehearsed=False
        )
        compare("mysql", await played(database, record), StatementNaming("mysql"))
