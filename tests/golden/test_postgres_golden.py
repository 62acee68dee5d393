"""What the Postgres store sends stays as it is, unless the golden file says otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import asyncpg
import pytest

from tests.golden.golden import compare, played
from tests.golden.naming import StatementNaming
from tests.golden.record import Record
from tests.golden.stage import CALLER, Database
from tests.golden.wire_formats import PostgresWire
from tests.golden.wiretap import tapped
from tests.stores.postgres.support import AsyncpgHarness

pytestmark = pytest.mark.postgres


async def test_what_the_postgres_store_sends_is_what_the_golden_file_says(postgres_url: str) -> None:
    record = Record()
    with tapped(postgres_url, record, PostgresWire) as url:
        with record.connections_for(CALLER):
            own = await asyncpg.connect(url)
        # Always the same one: on a new connection the driver asks about types, and prepares each statement.
        database = Database(AsyncpgHarness(url), partial(transaction, own))
        entries = await played(database, record)
        await own.close()
    compare("postgres", entries, StatementNaming("postgres"))


@asynccontextmanager
async def transaction(own: asyncpg.Connection[asyncpg.Record]) -> AsyncIterator[object]:
    async with own.transaction():
        yield own
