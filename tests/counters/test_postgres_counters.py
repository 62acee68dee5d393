"""What a message costs on Postgres."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from nightmail import OutboxBroker
from nightmail.stores.postgres import PostgresStore
from nightmail.testing.clock import ManualClock
from testkit.servers import Postgres
from tests.counters.baseline import at_most, compare
from tests.counters.functions import Functions
from tests.counters.idle import assert_frugal_while_idle
from tests.counters.servers import PostgresMeter
from tests.counters.verbs import Place, costs
from tests.golden.record import Record
from tests.golden.wire_formats import PostgresWire
from tests.golden.wiretap import tapped
from tests.stores.postgres.support import connection, sqlalchemy_url
from tests.stores.support import opened

pytestmark = pytest.mark.postgres


async def test_what_a_message_costs_on_postgres_is_what_is_written_down(
    postgres_server: Postgres, postgres_url: str
) -> None:
    if not postgres_server.ours:
        pytest.skip("loading auto_explain needs a superuser, and others may write to the WAL")
    engine = create_async_engine(sqlalchemy_url(postgres_url))
    store = PostgresStore(postgres_url, clock=ManualClock())
    async with connection(postgres_url) as own, opened(store), OutboxBroker(store, logger=None) as broker:
        meter = PostgresMeter(own, store)
        await meter.listen_to_callers(engine)
        place = Place(broker, lambda: AsyncSession(engine), meter)
        found = await costs(place, Functions())
        server = f"Postgres {own.get_server_version().major}"
    await engine.dispose()

    compare("postgres", server, found)


async def test_idle_subscribers_on_postgres_share_one_look_every_five_seconds(postgres_url: str) -> None:
    async with OutboxBroker(postgres_url, create_tables=True, logger=None):
        pass
    record = Record()
    with tapped(postgres_url, record, PostgresWire) as url:
        await assert_frugal_while_idle("postgres", url, record)


async def test_a_transaction_on_postgres_wakes_once_for_each_queue(postgres_url: str) -> None:
    engine = create_async_engine(sqlalchemy_url(postgres_url))
    store, heard = PostgresStore(postgres_url), list[str]()
    async with (
        opened(store),
        OutboxBroker(store, logger=None) as broker,
        connection(postgres_url) as own,
        AsyncSession(engine) as session,
    ):
        assert store._opened is not None
        channel = await store._opened.lanes.publish.run(store._opened._tables.channel)
        await own.add_listener(channel, lambda *notified: heard.append(str(notified[-1])))

        for _ in range(20):
            await broker.publish("one by one", "tea", session=session)
        await broker.publish_batch(*["at once"] * 100, queue="coffee", session=session)
        await session.commit()
        # Notifications come before the answer to what is asked after them.
        await own.execute("select 1")

    await engine.dispose()
    at_most("a transaction on postgres, 120 messages for 2 queues", "wake-ups", len(heard))
    assert sorted(heard) == ["coffee", "tea"]
