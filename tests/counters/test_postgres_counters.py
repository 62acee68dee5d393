"""What a message costs on Postgres."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from nightmail import OutboxBroker
from nightmail.engine.presence import REPORT_SECONDS
from nightmail.stores.postgres import PostgresStore
from nightmail.stores.postgres.listen import PROBE_EVERY
from nightmail.testing.clock import ManualClock
from testkit.servers import Postgres
from tests.counters.baseline import compare
from tests.counters.functions import Functions
from tests.counters.idle import LOOK_SECONDS, SECONDS, SUBSCRIBERS, idle_statements
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
        place = Place(broker, lambda: AsyncSession(engine), PostgresMeter(own, store))
        found = await costs(place, Functions())
        server = f"Postgres {own.get_server_version().major}"
    await engine.dispose()

    compare("postgres", server, found)


async def test_idle_subscribers_on_postgres_share_one_look_every_five_seconds(postgres_url: str) -> None:
    async with OutboxBroker(postgres_url, create_tables=True, logger=None):
        pass
    record = Record()
    # Their last claims of their own, the looks, a report every ten seconds, and a probe of the wake-ups: about one
    # statement in three seconds. No lease is renewed.
    most = SUBSCRIBERS + SECONDS / LOOK_SECONDS + SECONDS / REPORT_SECONDS + SECONDS / PROBE_EVERY + 3
    with tapped(postgres_url, record, PostgresWire) as url:
        sent = await idle_statements(url, record)

    assert 0 < sent <= most < 2 * SECONDS


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
    assert sorted(heard) == ["coffee", "tea"]
