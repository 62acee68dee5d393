"""Batches larger than a packet, and what a claim and its recall read and write."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from nightmail.errors import Refused
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from tests.plans.test_mysql_plans import rows_touched
from tests.stores.mysql.support import open_store, raw_connection, run, watched_store
from tests.stores.support import claim

pytestmark = pytest.mark.mysql

MIB = 1024 * 1024


async def test_a_batch_of_the_largest_size_is_stored_by_a_server_with_its_defaults(mysql_url: str) -> None:
    assert await run(mysql_url, "select @@max_allowed_packet") == [(16 * MIB,)]
    async with open_store(mysql_url) as store:
        batch = [message(b"%d" % n + b"x" * (2 * MIB - 100)) for n in range(16)]

        ids = await store.publish_batch(batch)

        assert len(ids) == 16
        assert ids == sorted(ids)
        assert await run(mysql_url, "select count(*) from nightmail_messages") == [(16,)]


async def test_a_large_batch_in_a_callers_transaction_is_all_or_none(
    mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightmail.stores.mysql.publishing.PACKET", 3000)
    batch = [message(b"%03d" % n, headers={"h": "x" * 200}) for n in range(20)]
    async with open_store(mysql_url) as store:
        async with raw_connection(mysql_url) as own:
            ids = await store.publish_batch(batch, transaction=own)
        assert [delivery.body for delivery in await claim(store, limit=20)] == [each.body for each in batch]
        assert len(set(ids)) == 20

        await run(mysql_url, "delete from nightmail_messages")
        await run(
            mysql_url,
            "create trigger refuses before insert on nightmail_messages for each row "
            "begin if new.body = '013' then signal sqlstate '45000'; end if; end",
        )
        async with raw_connection(mysql_url) as own:
            with pytest.raises(Exception, match="1644"):
                await store.publish_batch(batch, transaction=own)
            await store.publish(message(b"alone"), transaction=own)
        with pytest.raises(Refused):
            await store.publish_batch(batch)
        assert [delivery.body for delivery in await claim(store)] == [b"alone"]


async def test_recall_does_not_walk_over_what_waits(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        await run(
            mysql_url,
            "insert into nightmail_messages (queue, priority, due_at, published_at, headers, body) "
            f"select '{QUEUE}', 4, utc_timestamp(6), utc_timestamp(6), '{{}}', 'x' from seq_1_to_20000",
        )
        token = uuid4()
        await store.claim([QUEUE], limit=10, lease=LEASE, token=token)
        assert store._opening.now is not None
        lane = store._opening.now.claim_lane
        before = await lane.run(rows_touched)

        assert await store.recall([QUEUE], token) == 10

        assert await lane.run(rows_touched) - before < 300


async def test_a_lease_begins_when_it_is_written(mysql_url: str) -> None:
    async with watched_store(mysql_url) as (store, interference):
        await store.publish(message())
        locked_at: list[datetime] = []

        def note(statements: tuple[str, ...]) -> None:
            if any("skip locked" in statement for statement in statements):
                locked_at.append(datetime.now(UTC))

        interference.after = note
        (delivery,) = await claim(store)
        ((claimed_at, lease_until),) = await run(
            mysql_url, "select claimed_at, lease_until from nightmail_messages"
        )

        # The server is on this machine, and goes by the same clock.
        assert delivery.claimed_at >= locked_at[0]
        assert delivery.claimed_at.replace(tzinfo=None) == claimed_at
        assert lease_until - claimed_at == LEASE
