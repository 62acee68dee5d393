"""The database that the shared tests use."""

from __future__ import annotations

import pytest

from testkit.servers.mariadb import MariaDB
from tests.stores.mysql.support import MySQLBackend


@pytest.fixture
def backend(mariadb_server: MariaDB, mysql_url: str) -> MySQLBackend:
    return MySQLBackend(mysql_url, mariadb_server)
