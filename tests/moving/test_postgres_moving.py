"""What waits in the tables of faststream-outbox becomes ours."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from nightmail import OutboxBroker
from nightmail.annotations import OutboxMessage
from nightmail.errors import NightmailError
from nightmail.message import Message
from nightmail.moving import Census, Moved, OldTables, QueueCensus, Stuck
from nightmail.records import DeadFilter
from nightmail.store import FullStore
from tests.moving.old_outbox import both, moving, old_process

pytestmark = pytest.mark.postgres

LATER = datetime(2031, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


async def waiting(store: FullStore, queue: str = "orders") -> list[bytes]:
    return [message.body for message in await store.peek(queue, limit=10_000)]


# ---------------------------------------------------------------------------------------- what moves


async def test_a_delayed_row_keeps_everything_and_its_due_time_to_the_microsecond(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store) as mover:
        headers = {"content-type": "application/json", "correlation_id": "c-1", "tenant": "é"}
        id_ = await old.publish(b'{"n": 1}', "invoices", headers=headers, at=LATER, timer_id="invoice-1")

        assert await mover.move() == Moved(messages=1)

        assert await old.ids() == []
        (message,) = await store.peek("invoices")
        assert message.body == b'{"n": 1}'
        assert message.due_at == LATER
        assert message.timer_id == "invoice-1"
        assert message.headers == {**headers, "faststream-outbox-id": str(id_)}


async def test_what_is_overdue_goes_in_the_order_in_which_it_was_published(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store, batch=3) as mover:
        for number in range(10):
            await old.publish(b"%d" % number, timer_id=f"t-{number}" if number % 3 == 1 else None)

        assert await mover.move() == Moved(messages=10)

        claimed = await store.claim(["orders"], limit=10, lease=MINUTE, token=uuid4())
        # One in eight is taken by age alone and comes first: here that is the same.
        assert [each.body for each in claimed.deliveries] == [b"%d" % number for number in range(10)]


async def test_a_row_that_waits_for_its_next_attempt_waits_for_it_here(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store) as mover:
        id_ = await old.publish()
        await old.connection.execute(
            "update outbox set next_attempt_at = $2, attempts_count = 3, deliveries_count = 3 where id = $1",
            *(id_, LATER),
        )

        assert await mover.move() == Moved(messages=1)

        (message,) = await store.peek("orders")
        assert message.due_at == LATER


async def test_a_due_time_outside_every_calendar_does_not_stop_the_others(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store) as mover:
        for moment in ("infinity", "-infinity", "20000-01-01", "0044-03-15 BC"):
            id_ = await old.publish(moment.encode())
            await old.connection.execute(f"update outbox set next_attempt_at = '{moment}' where id = $1", id_)

        assert await mover.move() == Moved(messages=4)

        assert set(await waiting(store)) == {b"infinity", b"-infinity", b"20000-01-01", b"0044-03-15 BC"}


async def test_a_handler_gets_what_theirs_would_have_got(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store) as mover:
        broker = OutboxBroker(store)
        got: asyncio.Queue[tuple[Any, str, str | None]] = asyncio.Queue()

        @broker.subscriber("orders")
        async def handle(body: Any, msg: OutboxMessage) -> None:
            got.put_nowait((body, msg.correlation_id, msg.content_type))

        await broker.start()
        json_type = {"content-type": "application/json", "correlation_id": "c-1"}
        await old.publish(b'{"order": 7}', headers=json_type)
        await old.publish(b"hello", headers={"content-type": "text/plain", "correlation_id": "c-2"})
        bare = await old.publish(b"\xff\x00")

        assert await mover.move() == Moved(messages=3)

        # The bell rang: there is no wait for the next look.
        async with asyncio.timeout(4):
            handled = [await got.get() for _ in range(3)]
        await broker.stop()
        assert sorted(handled, key=str) == sorted(
            [
                ({"order": 7}, "c-1", "application/json"),
                ("hello", "c-2", "text/plain"),
                (b"\xff\x00", str(bare), None),
            ],
            key=str,
        )


async def test_tables_may_be_called_anything_and_be_anywhere(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store):
        await old.publish()
        await old.connection.execute(
            'create schema "Shop"; alter table outbox set schema "Shop"; alter table "Shop".outbox rename to "old_dead"'
        )

        async with moving(postgres_url, store, OldTables(messages="Shop.old_dead")) as mover:
            await mover.check()
            assert await mover.move() == Moved(messages=1)


async def test_a_database_at_repeatable_read_makes_no_difference(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store):
        name = await old.connection.fetchval("select current_database()")
        await old.connection.execute(
            f"alter database \"{name}\" set default_transaction_isolation to 'repeatable read'"
        )
        await old.publish()

        async with moving(postgres_url, store) as mover:
            assert await mover.move() == Moved(messages=1)


# ---------------------------------------------------------------------------------------- what stays


async def test_a_leased_row_stays_and_its_worker_finishes_it(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store) as mover:
        await old.publish(b"held")
        token, (held,) = await old.claim()
        await old.publish(b"free")
        await old.age_leases(timedelta(days=365))

        assert await mover.move() == Moved(messages=1)

        assert await waiting(store) == [b"free"]
        assert await old.done(held["id"], token)
        assert await mover.move() == Moved()


async def test_with_a_lease_ttl_a_row_moves_once_its_lease_is_older(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store, lease_ttl=MINUTE) as mover:
        await old.publish(b"abandoned")
        token, (abandoned,) = await old.claim()
        await old.age_leases(2 * MINUTE)
        await old.publish(b"held")
        await old.claim(limit=1)

        assert await mover.count() == Census({"orders": QueueCensus(waiting=1, taken=0, leased=1)}, 0)
        assert await mover.move() == Moved(messages=1)

        assert await waiting(store) == [b"abandoned"]
        # A worker that comes back too late is told, as when another worker had taken it over.
        assert not await old.done(abandoned["id"], token)


async def test_a_row_whose_name_is_taken_here_stays_and_is_reported(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store) as mover:
        await store.publish(Message(queue="orders", body=b"ours", due=LATER, timer_id="t-1"))
        theirs = await old.publish(b"theirs", timer_id="t-1")
        await old.publish(b"free", timer_id="t-2")
        await old.publish(b"elsewhere", "other", timer_id="t-1")
        assert theirs is not None

        assert (await mover.count()).queues["orders"] == QueueCensus(waiting=2, taken=1, leased=0)
        stuck = Stuck(theirs, "orders", "its timer id 't-1' is taken")
        assert await mover.move() == Moved(messages=2, stuck=(stuck,))
        assert await mover.move_all(pause=0) == Moved(stuck=(stuck,))
        assert await old.ids() == [theirs]
        assert await waiting(store) == [b"free", b"ours"]

        assert await store.cancel("orders", "t-1")
        assert await mover.move() == Moved(messages=1)
        assert await waiting(store) == [b"free", b"theirs"]


async def test_a_row_that_we_could_not_store_stays_and_is_reported(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store, batch=2) as mover:
        await old.publish(b"1")
        nameless = await old.publish(timer_id="")
        await old.publish(b"2")
        listed = await old.publish()
        await old.connection.execute("update outbox set headers = '[1]' where id = $1", listed)
        assert nameless is not None
        assert listed is not None

        moved = await mover.move()

        assert moved.messages == 2
        assert [stuck.id for stuck in moved.stuck] == [nameless, listed]
        assert moved.stuck[0].why == "it cannot be stored: timer_id must not be empty"
        assert moved.stuck[1].why == "it cannot be stored: its headers are not a JSON object"
        assert await old.ids() == [nameless, listed]


async def test_a_row_in_another_open_transaction_is_passed_over(postgres_url: str) -> None:
    async with (
        both(postgres_url) as (old, store),
        moving(postgres_url, store) as mover,
        old_process(postgres_url) as other,
    ):
        await old.publish(b"1", timer_id="t-1")
        await old.publish(b"2", timer_id="t-2")
        cancelling = other.connection.transaction()
        await cancelling.start()
        assert await other.cancel("t-1")
        await other.publish(b"3")

        assert await mover.move() == Moved(messages=1)
        await cancelling.rollback()

        assert await mover.move() == Moved(messages=1)
        assert await waiting(store) == [b"2", b"1"]


async def test_a_caller_that_cancels_there_and_then_here_gets_it(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store) as mover:
        await old.publish(timer_id="t-1")
        await mover.move()

        assert not await old.cancel("t-1")
        assert await store.cancel("orders", "t-1")


async def test_no_caller_waits_for_long_while_a_name_is_wanted_here_by_an_open_transaction(
    postgres_url: str,
) -> None:
    async with (
        both(postgres_url) as (old, store),
        moving(postgres_url, store) as mover,
        old_process(postgres_url) as app,
    ):
        for number in range(4):
            await old.publish(b"%d" % number, timer_id=f"t-{number}", at=LATER)
        publishing = app.connection.transaction()
        await publishing.start()
        message = Message(queue="orders", body=b"new", timer_id="t-1", due=LATER)
        assert await store.publish(message, transaction=app.connection)

        async with asyncio.timeout(5):
            assert await mover.move() == Moved(messages=3)
            # Had the rows before it not been let go of, the two would now wait for each other.
            assert not await app.cancel("t-0")
        await publishing.rollback()

        assert await mover.move() == Moved(messages=1)
        assert sorted(await waiting(store)) == [b"0", b"1", b"2", b"3"]


async def test_a_table_that_keeps_what_it_was_to_give_is_left_whole(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store) as mover:
        ids = [await old.publish(), await old.publish()]
        await old.connection.execute("""
            create function keep() returns trigger language plpgsql as 'begin return null; end';
            create trigger keep before delete on outbox for each row execute function keep();
        """)

        with pytest.raises(NightmailError, match="nothing of this batch was moved"):
            await mover.move()

        assert await waiting(store) == []
        assert await old.ids() == ids


# ------------------------------------------------------------------------------------ before it moves


async def test_counting_changes_nothing(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store) as mover:
        await old.publish()
        await old.claim()
        ids = [await old.publish(), await old.publish(queue="mail", at=LATER)]
        dead = await old.publish()
        assert dead is not None
        await old.bury(dead, "rejected", None)

        census = await mover.count()

        assert census == Census(
            {
                "mail": QueueCensus(waiting=1, taken=0, leased=0),
                "orders": QueueCensus(waiting=1, taken=0, leased=1),
            },
            dead=1,
        )
        assert census.rows == 4
        assert (await old.ids())[1:] == ids
        assert await store.stats() == {}


async def test_every_batch_is_told(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store, batch=2) as mover:
        for _ in range(5):
            await old.publish()
        told: list[int] = []

        await mover.move(lambda moved: told.append(moved.messages))

        assert told == [2, 4, 5]


async def test_what_is_not_theirs_is_refused(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store):
        await old.connection.execute("alter table outbox drop column payload")

        for tables, why in (
            (OldTables(messages="nowhere"), "there is no table 'nowhere'"),
            (OldTables(dead="nowhere", messages="outbox_dlq"), "it has no column next_attempt_at"),
            (OldTables(), "it has no column payload"),
        ):
            async with moving(postgres_url, store, tables) as mover:
                with pytest.raises(ValueError, match=why):
                    await mover.check()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"batch": 0}, "batch must be at least 1"),
        ({"lease_ttl": timedelta(0)}, "lease_ttl must be positive"),
    ],
)
async def test_what_could_not_work_is_refused(postgres_url: str, options: dict[str, Any], why: str) -> None:
    async with both(postgres_url) as (_, store):
        with pytest.raises(ValueError, match=why):
            async with moving(postgres_url, store, **options):
                pass


# --------------------------------------------------------------------------------------- dead letters


async def test_dead_letters_move_with_all_that_is_known_of_them(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store, batch=2) as mover:
        for reason in ("retry_terminal", "rejected", "max_deliveries"):
            id_ = await old.publish(reason.encode(), timer_id=reason, headers={"tenant": "é"})
            assert id_ is not None
            await old.connection.execute("update outbox set deliveries_count = 4 where id = $1", id_)
            await old.bury(id_, reason, "ValueError('no')")
        await old.connection.execute("update outbox_dlq set failed_at = $1, created_at = $2", LATER, LATER)

        assert await mover.move() == Moved(dead=3)

        assert await old.connection.fetchval("select count(*) from outbox_dlq") == 0
        (rejected,) = await store.dead(DeadFilter(reason="rejected"))
        (exhausted,) = await store.dead(DeadFilter(reason="retries_exhausted"))
        assert len(await store.dead(DeadFilter(reason="max_deliveries"))) == 1
        assert (exhausted.body, exhausted.timer_id) == (b"retry_terminal", "retry_terminal")
        assert (rejected.queue, rejected.error) == ("orders", "ValueError('no')")
        assert (rejected.died_at, rejected.published_at) == (LATER, LATER)
        assert (rejected.attempts, rejected.deliveries) == (4, 4)
        was = str(rejected.message_id)
        assert rejected.headers == {"tenant": "é", "correlation_id": was, "faststream-outbox-id": was}

        await store.redrive([rejected])
        assert await waiting(store) == [b"rejected"]


async def test_without_a_name_the_dead_letter_table_stays(postgres_url: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store, OldTables()) as mover:
        id_ = await old.publish()
        assert id_ is not None
        await old.bury(id_, "rejected", None)

        assert await mover.move() == Moved()
        assert await old.connection.fetchval("select count(*) from outbox_dlq") == 1


@pytest.mark.parametrize("headers", ["null", "'null'", "'[1]'"])
async def test_a_letter_with_odd_headers_moves_too(postgres_url: str, headers: str) -> None:
    async with both(postgres_url) as (old, store), moving(postgres_url, store) as mover:
        id_ = await old.publish()
        assert id_ is not None
        await old.bury(id_, "rejected", "x" * 10_000)
        await old.connection.execute(f"update outbox_dlq set headers = {headers}")

        assert await mover.move() == Moved(dead=1)

        (letter,) = await store.dead(DeadFilter())
        assert letter.error is not None
        assert len(letter.error) == 8192
        assert await store.redrive([letter])
