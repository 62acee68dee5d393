"""What synchronous code may have its transaction on MySQL in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pymysql

from nightmail.store import Blocking
from tests.stores.mysql.support import DriverHarness, blocking_arguments, blocking_connection, sqlalchemy_url
from tests.stores.shared.callers import of_django, of_synchronous_sqlalchemy

# Django knows only mysqlclient. Where it is not installed, for it has to be compiled, PyMySQL passes for it.
if find_spec("MySQLdb") is None:
    pymysql.install_as_MySQLdb()


@contextmanager
def without_autocommit(url: str) -> Iterator[Any]:
    own = pymysql.connect(**blocking_arguments(url), autocommit=False)
    try:
        yield own
        own.commit()
    finally:
        # Whatever was not committed is rolled back.
        own.close()


def pymysql_url(url: str) -> str:
    return sqlalchemy_url(url, "pymysql")


DJANGO = of_django("mysql")
BLOCKING_CALLERS = {
    "PyMySQL": blocking_connection,
    "PyMySQL without autocommit": without_autocommit,
    **of_synchronous_sqlalchemy(pymysql_url),
    "Session at read committed": of_synchronous_sqlalchemy(pymysql_url, isolation_level="READ COMMITTED")[
        "Session"
    ],
    **DJANGO,
}


class DjangoHarness(DriverHarness):
    """Synchronous callers use Django."""

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        with DJANGO["django.db.connection"](self.url) as own:
            yield Blocking(own)


class BlockingSqlalchemyHarness(DriverHarness):
    """Synchronous callers use a session of SQLAlchemy."""

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        with BLOCKING_CALLERS["Session at read committed"](self.url) as session:
            yield Blocking(session)
