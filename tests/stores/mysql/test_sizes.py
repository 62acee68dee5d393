"""Batches larger than a packet, and rows that other software wrote."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from nightmail.errors import Refused
from nightmail.outcome import Dead, Reason, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import Settlement
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from tests.plans.test_mysql_plans import rows_touched
from tests.stores.mysql.support import connection, execute, open_store, raw_connection, run, watched_store
from tests.stores.support import claim, done

pytestmark = pytest.mark.mysql

MIB = 1024 * 1024


# -------------------------------------------------------------------------------------------- batches


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


async def test_one_refused_message_does_not_fail_those_who_share_its_commit(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        await run(
            mysql_url,
            "create trigger refuses before insert on nightmail_messages for each row "
            "begin if new.body = 'bad' then signal sqlstate '45000'; end if; end",
        )
        bodies = [b"1", b"bad", b"2", b"3", b"4"]

        results = await asyncio.gather(
            *(store.publish(message(body)) for body in bodies), return_exceptions=True
        )

        assert [isinstance(result, Refused) for result in results] == [False, True, False, False, False]
        assert sorted(delivery.body for delivery in await claim(store)) == [b"1", b"2", b"3", b"4"]


# ------------------------------------------------------------------------------------------- odd rows

ODD = {
    "due at no date": "due_at = '0000-00-00 00:00:00'",
    "due on no day": "due_at = '2020-05-00 00:00:00'",
    "due on a day that is none": "due_at = '2020-02-31 00:00:00'",
    "published at no date": "published_at = '0000-00-00 00:00:00'",
    "expires at no date": "expires_at = '0000-00-00 00:00:00'",
    "failed first at no date": "first_attempt_at = '2020-00-10 00:00:00'",
    "failed last in no year": "last_attempt_at = '0000-05-05 00:00:00'",
}


@pytest.mark.parametrize("change", ODD.values(), ids=list(ODD))
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_row_that_cannot_be_read_becomes_a_dead_letter_and_its_neighbours_are_claimed(
    mysql_url: str, change: str, key: str | None
) -> None:
    async with open_store(mysql_url) as store:
        for body in (b"before", b"odd", b"after"):
            await store.publish(message(body, ordering_key=key))
        await run(
            mysql_url,
            f"set statement sql_mode = 'ALLOW_INVALID_DATES', check_constraint_checks = 0 for "
            f"update nightmail_messages set {change} where body = 'odd'",
        )

        bodies: list[bytes] = []
        for _ in range(3):
            taken = await claim(store)
            bodies += [delivery.body for delivery in taken]
            await done(store, taken)

        assert bodies == [b"before", b"after"]
        (letter,) = await store.dead(DeadFilter())
        assert (letter.body, letter.reason, letter.attempts) == (b"odd", Reason.UNREADABLE, 0)
        assert (await store.claim_dead([QUEUE], limit=1, lease=LEASE, token=uuid4())).deliveries == ()
        assert await store.redrive([letter])
        assert [delivery.body for delivery in await claim(store)] == [b"odd"]


async def test_no_date_cannot_be_written_by_a_plain_insert(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, connection(mysql_url) as own:
        await store.publish(message())
        with pytest.raises(Exception, match="nightmail_messages_dates"):
            await execute(own, "set statement sql_mode = '' for update nightmail_messages set due_at = 0")


async def test_a_letter_that_cannot_be_read_is_offered_to_nobody(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        await run(
            mysql_url,
            "set statement sql_mode = '' for insert into nightmail_dead (message_id, died_at, due_at, published_at, "
            "attempts, deliveries, priority, queue, reason, headers, body) values "
            f"(1, 0, utc_timestamp(6), 0, 0, 0, 4, '{QUEUE}', 'rejected', '{{}}', 'odd'), "
            f"(2, now(), now(), now(), 0, 0, 4, '{QUEUE}', 'rejected', '{{}}', 'good')",
        )

        for expected in ([b"good"], []):
            claimed = await store.claim_dead([QUEUE], limit=5, lease=LEASE, token=uuid4())
            assert [delivery.body for delivery in claimed.deliveries] == expected
        assert sorted(letter.body for letter in await store.dead(DeadFilter())) == [b"good", b"odd"]


async def test_headers_that_are_too_large_are_given_up_unread(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        for body in (b"large", b"next"):
            await store.publish(message(body, ordering_key="k"))
        await run(
            mysql_url, "update nightmail_messages set headers = repeat('x', 2000000) where body = 'large'"
        )
        await store.publish(message(b"other"))

        found = [delivery.body for _ in range(2) for delivery in await claim(store)]

        assert sorted(found) == [b"next", b"other"]
        (letter,) = await store.dead(DeadFilter(reason=Reason.TOO_LARGE))
        assert letter.body == b"large"
        assert (await store.claim_dead([QUEUE], limit=1, lease=LEASE, token=uuid4())).deliveries == ()


@pytest.mark.parametrize("column", ["attempts", "deliveries"])
async def test_counters_stop_at_the_limit_of_their_columns(mysql_url: str, column: str) -> None:
    async with open_store(mysql_url) as store:
        await store.publish(message())
        await run(mysql_url, f"update nightmail_messages set {column} = 2147483647")

        (delivery,) = await claim(store)
        assert getattr(delivery, column) == 2147483647
        assert await store.settle([Settlement(delivery, Retry())]) == [WriteResult.WRITTEN]
        (delivery,) = await claim(store)
        assert await store.settle([Settlement(delivery, Dead("rejected"))]) == [WriteResult.WRITTEN]
        assert len(await store.dead(DeadFilter())) == 1


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
