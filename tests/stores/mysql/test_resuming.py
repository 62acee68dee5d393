"""Going on after the server was away."""

from __future__ import annotations

import pytest

from testkit.servers.mariadb import MariaDB
from tests.stores.mysql.support import open_store
from tests.stores.resuming import goes_on_soon_after

pytestmark = pytest.mark.mysql


async def test_a_worker_goes_on_soon_after_its_server_is_back(
    mariadb_server: MariaDB, mysql_url: str
) -> None:
    async with open_store(mysql_url) as store:
        await goes_on_soon_after(store, mariadb_server)
