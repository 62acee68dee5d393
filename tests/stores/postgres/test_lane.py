"""A connection of ours when its user is cancelled, and when the server does not answer in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.stores.postgres.connect import connector
from nightmail.stores.postgres.lane import Lane
from nightmail.stores.postgres.link import Role
from nightmail.testing.conformance.build import message
from tests.stores.postgres.support import backends, connection, open_store
from tests.stores.support import until

pytestmark = pytest.mark.postgres


async def test_a_publisher_cancelled_before_its_turn_stores_nothing(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.ping()
        async with own.transaction():
            await own.execute("lock table nightmail_messages in exclusive mode")
            first = asyncio.create_task(store.publish(message(b"sent")))
            await until(lambda: _waits(own, "publish"))
            second = asyncio.create_task(store.publish(message(b"not sent")))
            await asyncio.sleep(0)
            first.cancel()
            second.cancel()
            await asyncio.gather(first, second, return_exceptions=True)

        # The first was under way, and is carried out though its caller is gone.
        await store.ping()
        assert [found.body for found in await store.peek()] == [b"sent"]


async def test_a_connection_that_took_too_long_is_replaced(postgres_url: str) -> None:
    lane = Lane(_Impatient("impatient"), connector(postgres_url))
    with pytest.raises(PublishUncertain):
        await lane.run(lambda own: own.execute("select pg_sleep(30)"), lost=PublishUncertain)
    assert lane.link is None

    assert await lane.run(lambda own: own.fetchval("select 1")) == 1
    await lane.close()


class _Impatient(Role):
    """Waits for the server less long than the server takes."""

    @property
    def patience(self) -> float:
        return 1.0


async def test_a_statement_that_the_server_gave_up_was_not_carried_out(postgres_url: str) -> None:
    lane = Lane(Role("hasty", statement_seconds=1), connector(postgres_url))
    with pytest.raises(StoreUnavailable) as raised:
        await lane.run(lambda own: own.execute("select pg_sleep(30)"), lost=PublishUncertain)

    assert not isinstance(raised.value, PublishUncertain)
    assert lane.link is not None
    await lane.close()


async def _waits(own: Any, role: str) -> bool:
    (pid,) = await backends(own, role)
    waits = await own.fetchval("select wait_event_type = 'Lock' from pg_stat_activity where pid = $1", pid)
    return bool(waits)
