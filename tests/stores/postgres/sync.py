"""What synchronous code may have its transaction on Postgres in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from nightmail.store import Blocking
from tests.stores.postgres.support import AsyncpgHarness, psycopg_url
from tests.stores.shared.callers import of_django, of_synchronous_sqlalchemy


@contextmanager
def psycopg_connection(url: str) -> Iterator[Any]:
    with psycopg.connect(url) as own:
        yield own


@contextmanager
def psycopg_block(url: str) -> Iterator[Any]:
    with psycopg.connect(url, autocommit=True) as own, own.transaction():
        yield own


DJANGO = of_django("postgresql", {"server_side_binding": True})
BLOCKING_CALLERS = {
    "psycopg": psycopg_connection,
    "psycopg in a block": psycopg_block,
    **of_synchronous_sqlalchemy(psycopg_url),
    **DJANGO,
}


class DjangoHarness(AsyncpgHarness):
    """Synchronous callers use Django."""

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        with DJANGO["django.db.connection"](self.url) as own:
            yield Blocking(own)
