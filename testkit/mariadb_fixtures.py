"""MariaDB as fixtures."""

from collections.abc import Iterator

import pytest

from testkit.pytest_plugin import provide
from testkit.servers.mariadb import MariaDB

__all__ = ["mariadb_server", "mysql_url"]


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDB]:
    """One MariaDB for the whole session. A test may kill it: the next one finds it running again."""
    with provide(MariaDB.from_environment()) as server:
        yield server


@pytest.fixture
def mysql_url(mariadb_server: MariaDB) -> Iterator[str]:
    """The URL of an empty database that only this test knows."""
    mariadb_server.revive()
    url = mariadb_server.create_database()
    yield url
    mariadb_server.revive()
    mariadb_server.drop_database(url)
