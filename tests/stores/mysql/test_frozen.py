"""Stopping while the server does not answer."""

from __future__ import annotations

import pytest

from testkit.servers.mariadb import MariaDB
from tests.stores.frozen import stops_in_time

pytestmark = pytest.mark.mysql


async def test_a_server_that_hangs_does_not_hang_the_shutdown(
    mariadb_server: MariaDB, mysql_url: str
) -> None:
    await stops_in_time(mysql_url, mariadb_server)
