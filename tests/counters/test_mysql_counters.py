"""What a message costs on MariaDB."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from nightmail import OutboxBroker
from nightmail.stores.mysql import MySQLStore
from nightmail.testing.clock import ManualClock
from tests.counters.baseline import compare
from tests.counters.connections import assert_few_connections
from tests.counters.functions import Functions
from tests.counters.idle import assert_frugal_while_idle
from tests.counters.servers import MySQLMeter
from tests.counters.verbs import Place, costs
from tests.golden.record import Record
from tests.golden.wire_formats import MySQLWire
from tests.golden.wiretap import tapped
from tests.stores.mysql.support import run, sqlalchemy_url
from tests.stores.support import opened

pytestmark = pytest.mark.mysql


async def test_what_a_message_costs_on_mysql_is_what_is_written_down(mysql_url: str) -> None:
    engine = create_async_engine(sqlalchemy_url(mysql_url))
    store = MySQLStore(mysql_url, clock=ManualClock())
    async with opened(store), OutboxBroker(store, logger=None) as broker:
        found = await costs(Place(broker, lambda: AsyncSession(engine), MySQLMeter(mysql_url)), Functions())
    await engine.dispose()
    [(version,)] = await run(mysql_url, "select version()")

    product = "MariaDB" if "MariaDB" in version else "MySQL"
    compare("mysql", f"{product} {'.'.join(version.split('.')[:2])}", found)


async def test_idle_subscribers_on_mysql_only_look_every_five_seconds(mysql_url: str) -> None:
    async with OutboxBroker(mysql_url, create_tables=True, logger=None):
        pass
    record = Record()
    with tapped(mysql_url, record, MySQLWire) as url:
        await assert_frugal_while_idle("mysql", url, record)


@pytest.mark.parametrize("subscribers", [1, 10])
async def test_the_number_of_connections_to_mysql_does_not_grow_with_the_subscribers(
    mysql_url: str, subscribers: int
) -> None:
    record = Record()
    with tapped(mysql_url, record, MySQLWire) as url:
        await assert_few_connections("mysql", url, record, subscribers)
