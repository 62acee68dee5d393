"""A caller's transaction on MySQL, in everything it may live in, and what cannot be one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import uuid4

import asyncmy
import pytest
from asyncmy.cursors import DictCursor
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from nightmail.errors import (
    CannotJoin,
    LeaseLost,
    NotInTransaction,
    OtherDatabase,
    SchemaMissing,
    TimerExists,
)
from nightmail.message import Message, OnConflict
from nightmail.outcome import WriteResult
from nightmail.stores.mysql import MySQLStore, timers
from testkit.servers.mariadb import MariaDB, connect_arguments
from tests.stores.mysql.support import (
    HOUR,
    LEASE,
    QUEUE,
    DriverHarness,
    claim,
    connection,
    connection_without_autocommit,
    done,
    execute,
    message,
    open_store,
    raw_aiomysql_connection,
    raw_connection,
    run,
    sqlalchemy_connection,
    sqlalchemy_session,
    sqlalchemy_url,
    until,
    waits_for_a_lock,
    watched_store,
)

pytestmark = pytest.mark.mysql

Begin: TypeAlias = Callable[[str], AbstractAsyncContextManager[Any]]

every_kind = pytest.mark.parametrize(
    "begin",
    [
        raw_connection,
        raw_aiomysql_connection,
        connection_without_autocommit,
        sqlalchemy_connection,
        sqlalchemy_session,
    ],
)


class _ChangedMyMind(Exception):
    """Rolls a test's transaction back."""


# ------------------------------------------------------------------------------------ what is joined


@every_kind
async def test_what_was_published_commits_with_the_transaction(mysql_url: str, begin: Begin) -> None:
    async with open_store(mysql_url) as store:
        async with begin(mysql_url) as transaction:
            id_ = await store.publish(message(b"one"), transaction=transaction)
            ids = await store.publish_batch([message(b"two"), message(b"three")], transaction=transaction)
            assert await store.publish(message(b"four", timer_id="t"), transaction=transaction)
            assert await store.publish(message(b"five", timer_id="t"), transaction=transaction) is None
            with pytest.raises(TimerExists):
                await store.publish(
                    message(b"six", timer_id="t", on_conflict="raise"), transaction=transaction
                )
            assert await claim(store) == []

        deliveries = await claim(store)
        assert [delivery.body for delivery in deliveries] == [b"one", b"two", b"three", b"four"]
        assert [delivery.id for delivery in deliveries[:3]] == [id_, *ids]


@every_kind
async def test_what_was_published_rolls_back_with_the_transaction(mysql_url: str, begin: Begin) -> None:
    async with open_store(mysql_url) as store:
        with pytest.raises(_ChangedMyMind):
            async with begin(mysql_url) as transaction:
                await store.publish(message(), transaction=transaction)
                await store.publish(message(timer_id="t", on_conflict="replace"), transaction=transaction)
                raise _ChangedMyMind

        assert await claim(store) == []
        assert await store.publish(message(timer_id="t")) is not None


@every_kind
async def test_an_ack_commits_and_rolls_back_with_the_transaction(mysql_url: str, begin: Begin) -> None:
    async with open_store(mysql_url) as store:
        await store.publish(message())
        deliveries = await claim(store)
        with pytest.raises(_ChangedMyMind):
            async with begin(mysql_url) as transaction:
                await store.hold(deliveries, transaction=transaction)
                await store.ack(deliveries, transaction=transaction)
                raise _ChangedMyMind
        assert await store.extend(deliveries, LEASE) == [WriteResult.WRITTEN]

        async with begin(mysql_url) as transaction:
            await store.ack(deliveries, transaction=transaction)

        assert await store.extend(deliveries, LEASE) == [WriteResult.LOST]


async def test_a_session_that_was_not_begun_is_in_a_transaction_once_it_is_used(mysql_url: str) -> None:
    engine = create_async_engine(sqlalchemy_url(mysql_url))
    async with open_store(mysql_url) as store, AsyncSession(engine) as session:
        await store.publish(message(b"dropped"), transaction=session)
        await session.rollback()
        await store.publish(message(b"kept"), transaction=session)
        assert await claim(store) == []
        await session.commit()

        assert [delivery.body for delivery in await claim(store)] == [b"kept"]
    await engine.dispose()


async def test_a_savepoint_of_the_caller_is_honoured(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        async with raw_connection(mysql_url) as transaction:
            await store.publish(message(b"kept"), transaction=transaction)
            await execute(transaction, "savepoint mine")
            await store.publish(message(b"dropped"), transaction=transaction)
            await execute(transaction, "rollback to savepoint mine")

        assert [delivery.body for delivery in await claim(store)] == [b"kept"]


@pytest.mark.parametrize(
    "settings",
    [
        "sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,IGNORE_SPACE'",
        "sql_mode = ''",
        "time_zone = '+05:30'",
        "character_set_client = latin1, character_set_connection = latin1, character_set_results = latin1",
    ],
)
async def test_the_settings_of_a_callers_session_change_nothing(mysql_url: str, settings: str) -> None:
    odd = message(
        b"\x00\xff'\"\\;--%s%%",
        queue="\N{SNOWMAN}' or \\",
        headers={"quote": "'\\\"%s", "kind": "\N{SNOWMAN}"},
        timer_id="it's \\ a %s",
        ordering_key="k'\\",
        due=HOUR,
        expires_in=HOUR * 2,
    )
    async with open_store(mysql_url) as store, connection(mysql_url, cursor_cls=DictCursor) as own:
        await execute(own, f"set session {settings}")
        await own.begin()
        assert await store.publish(odd, transaction=own) is not None
        assert await store.publish(odd, transaction=own) is None
        (joined,) = await store.peek(odd.queue, transaction=own)
        await own.commit()

        (found,) = await store.peek(odd.queue)
        assert found == joined
        assert (found.queue, found.body, found.headers) == (odd.queue, odd.body, odd.headers)
        assert (found.timer_id, found.ordering_key) == (odd.timer_id, odd.ordering_key)
        assert found.due_at - found.published_at == HOUR
        assert found.expires_at == found.published_at + HOUR * 2


async def test_publishing_in_a_transaction_needs_no_connection_of_ours_and_few_statements(
    mysql_url: str,
) -> None:
    async with watched_store(mysql_url) as (store, interference):
        theirs: list[str] = []

        def note(_cursor: Any, query: str, _elapsed: float) -> None:
            theirs.append(query)

        async with connection(mysql_url, query_callback=note) as own:
            await execute(own, "set session transaction isolation level read committed")
            await own.begin()
            await store.publish(message(), transaction=own)
            interference.packets.clear()
            counts = []
            for verb in (
                lambda: store.publish(message(), transaction=own),
                lambda: store.publish_batch([message(), message()], transaction=own),
                lambda: store.publish(message(timer_id="t"), transaction=own),
                lambda: store.publish(message(timer_id="t"), transaction=own),
                lambda: store.publish(message(timer_id="t", on_conflict="replace"), transaction=own),
            ):
                theirs.clear()
                await verb()
                counts.append(len(theirs))
            await own.rollback()

        assert interference.packets == []
        assert counts == [1, 2, 4, 3, 4]


# ------------------------------------------------------------------------------ two at the same time


async def overtaken(
    store: MySQLStore, url: str, first: Message, second: Message
) -> tuple[int | None, int | None]:
    """What two publishes of one name give when the second begins before the first commits, and sees it only then."""
    async with connection(url) as one:
        await one.begin()
        stored = await store.publish(first, transaction=one)

        async def publish() -> int | None:
            async with raw_connection(url) as two:
                return await store.publish(second, transaction=two)

        waiting = asyncio.create_task(publish())
        await until(lambda: waits_for_a_lock(url))
        await one.commit()
        return stored, await waiting


@pytest.mark.parametrize(("policy", "kept"), [("replace", b"second"), ("earliest", b"first")])
async def test_a_name_that_appears_under_a_replacement_is_replaced_or_kept_by_the_rules(
    mysql_url: str,
    policy: OnConflict,
    kept: bytes,
) -> None:
    async with open_store(mysql_url) as store:
        first, second = await overtaken(
            store,
            mysql_url,
            message(b"first", timer_id="t", due=HOUR),
            message(b"second", timer_id="t", due=HOUR * 2, on_conflict=policy),
        )

        assert second == (first if kept == b"second" else None)
        assert [(found.id, found.body) for found in await store.peek()] == [(first, kept)]


async def test_a_publish_with_a_window_that_was_overtaken_by_one_without_leaves_no_window(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        first, second = await overtaken(
            store,
            mysql_url,
            message(b"first", timer_id="t"),
            message(b"second", timer_id="t", dedup_for=HOUR),
        )

        assert (first is not None, second) == (True, None)
        await done(store, await claim(store))
        assert await store.publish(message(b"third", timer_id="t")) is not None


async def test_of_two_publishes_with_a_window_one_is_stored_even_if_it_is_done_at_once(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        first, second = await overtaken(
            store,
            mysql_url,
            message(b"first", timer_id="t", dedup_for=HOUR),
            message(b"second", timer_id="t", dedup_for=HOUR),
        )

        assert (first is not None, second) == (True, None)
        await done(store, await claim(store))
        assert await store.publish(message(b"third", timer_id="t")) is None


async def test_a_skipped_publish_at_read_committed_hides_nothing_and_keeps_nobody_from_names_beside_it(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        await store.publish(message(b"there", timer_id="b"))
        async with raw_connection(mysql_url) as transaction:
            assert await store.publish(message(timer_id="b"), transaction=transaction) is None

            async with asyncio.timeout(2):
                for name in ("a", "b2", "c"):
                    assert await store.publish(message(timer_id=name, due=HOUR)) is not None
            assert [delivery.body for delivery in await claim(store)] == [b"there"]


async def test_a_caller_at_repeatable_read_does_not_skip_because_of_a_message_that_is_gone(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        await store.publish(message(b"gone", timer_id="t"))
        async with DriverHarness(mysql_url).transaction(repeatable_read=True) as transaction:
            await execute(transaction, "select count(*) from nightmail_messages")
            await done(store, await claim(store))

            assert await store.publish(message(b"new", timer_id="t"), transaction=transaction) is not None

        assert [delivery.body for delivery in await claim(store)] == [b"new"]


@asynccontextmanager
async def a_snapshot_for_one_transaction(url: str) -> AsyncIterator[Any]:
    """A transaction at repeatable read, in a session that says of itself that it is at read committed."""
    async with raw_connection(url) as own:
        await own.rollback()
        await execute(own, "set transaction isolation level repeatable read")
        await own.begin()
        await execute(own, "select count(*) from nightmail_messages")
        yield own


async def test_a_caller_at_repeatable_read_for_one_transaction_does_not_skip_because_of_a_message_that_is_gone(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        await store.publish(message(b"gone", timer_id="t"))
        async with a_snapshot_for_one_transaction(mysql_url) as transaction:
            await done(store, await claim(store))
            await store.publish(message(queue="other"), transaction=transaction)

            assert await store.publish(message(b"new", timer_id="t"), transaction=transaction) is not None
            # Its own is not committed yet, and takes the name all the same.
            assert await store.publish(message(b"second", timer_id="t"), transaction=transaction) is None

        assert [delivery.body for delivery in await claim(store)] == [b"new"]


@every_kind
async def test_a_name_that_is_taken_or_kept_by_a_window_is_skipped_in_a_transaction(
    mysql_url: str, begin: Begin
) -> None:
    async with open_store(mysql_url) as store:
        await store.publish(message(timer_id="borne"))
        await store.publish(message(queue="other", timer_id="kept", dedup_for=HOUR))
        await done(store, await claim(store, queue="other"))
        async with begin(mysql_url) as transaction:
            assert await store.publish(message(queue="third"), transaction=transaction) is not None
            assert await store.publish(message(timer_id="borne"), transaction=transaction) is None
            kept = message(queue="other", timer_id="kept")
            assert await store.publish(kept, transaction=transaction) is None
            assert await store.publish(message(timer_id="free"), transaction=transaction) is not None


async def test_a_caller_at_repeatable_read_for_one_transaction_replaces_a_message_that_it_does_not_see(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        await store.publish(message(b"gone", timer_id="t"))
        async with a_snapshot_for_one_transaction(mysql_url) as transaction:
            await done(store, await claim(store))
            unseen = await store.publish(message(b"unseen", timer_id="t"))

            over = message(b"over", timer_id="t", on_conflict="replace")
            assert await store.publish(over, transaction=transaction) == unseen

        assert [delivery.body for delivery in await claim(store)] == [b"over"]


async def test_a_publish_waits_while_somebody_else_is_given_ids_for_an_unknown_number_of_rows(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        # By its second row it has taken ids, and will keep everybody else from them until it ends.
        slowly = (
            "insert into nightmail_messages (queue, priority, due_at, published_at, headers, body) "
            "select 'slow', sleep(0.2), utc_timestamp(6), utc_timestamp(6), '{}', 'x' from seq_1_to_3"
        )
        storing = asyncio.create_task(run(mysql_url, slowly))
        while not store.retried[1467]:
            assert not storing.done()
            await store.publish(message(timer_id=f"t{uuid4()}"))

        await storing
        assert len(await store.peek("slow")) == 3


async def test_a_cancel_of_all_waits_for_nobody_in_another_queue(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        for queue, name in ((QUEUE, "a"), ("other", "a"), (QUEUE, "b"), (QUEUE, "c")):
            await store.publish(message(queue=queue, timer_id=name, dedup_for=HOUR))
        async with raw_connection(mysql_url) as own:
            await execute(own, "select * from nightmail_messages where queue_timer = 'other\\0a' for update")
            await execute(
                own, "select * from nightmail_dedup where queue = 'other' and timer_id = 'a' for update"
            )

            async with asyncio.timeout(2):
                assert await store.cancel_all(QUEUE) == 3

        assert await store.publish(message(timer_id="a")) is not None
        assert len(await store.peek("other")) == 1


@pytest.mark.parametrize("joined", [False, True])
async def test_a_cancel_of_all_ends_though_others_go_on_publishing(mysql_url: str, joined: bool) -> None:
    async with open_store(mysql_url) as store, open_store(mysql_url) as other:
        await store.publish_batch([message() for _ in range(100)])

        async def publish() -> None:
            while True:
                await other.publish(message())

        async with asyncio.timeout(20), raw_connection(mysql_url) as own:
            publishing = [asyncio.create_task(publish()) for _ in range(4)]
            try:
                assert await store.cancel_all(QUEUE, transaction=own if joined else None) >= 100
            finally:
                for task in publishing:
                    task.cancel()
                await asyncio.wait(publishing)


async def test_a_cancel_of_all_commits_portion_by_portion(
    mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "AT_ONCE", 10)
    async with watched_store(mysql_url) as (store, interference):
        await store.publish_batch([message() for _ in range(35)])
        interference.packets.clear()

        assert await store.cancel_all(QUEUE) == 35

        sent = [statement for packet in interference.packets for statement in packet]
        steps = [word for statement in sent for word in ("delete m", "commit") if statement.startswith(word)]
        assert steps == ["delete m", "commit"] * 4 + ["commit"]


# ----------------------------------------------------------------------------------- what is refused


async def refused(store: MySQLStore, transaction: Any) -> None:
    await store.publish(message(), transaction=transaction)


async def test_a_connection_outside_a_transaction_is_refused(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        async with connection(mysql_url) as own:
            with pytest.raises(NotInTransaction, match="begin"):
                await refused(store, own)
            await own.begin()
            await own.commit()
            with pytest.raises(NotInTransaction):
                await refused(store, own)
        with pytest.raises(NotInTransaction):
            await refused(store, own)
        assert await store.peek() == []


@pytest.mark.parametrize("driver", ["asyncmy", "aiomysql"])
@pytest.mark.parametrize("where", ["engine", "connection"])
async def test_autocommit_is_refused(mysql_url: str, where: str, driver: str) -> None:
    options = {"isolation_level": "AUTOCOMMIT"}
    engine = create_async_engine(sqlalchemy_url(mysql_url, driver), **(options if where == "engine" else {}))
    async with open_store(mysql_url) as store:
        async with engine.connect() as own:
            if where == "connection":
                own = await own.execution_options(**options)
            with pytest.raises(NotInTransaction, match="AUTOCOMMIT"):
                await refused(store, own)
        async with AsyncSession(engine) as session:
            if where == "connection":
                _ = await session.connection(execution_options=options)
            with pytest.raises(NotInTransaction, match="AUTOCOMMIT"):
                await refused(store, session)
        assert await store.peek() == []
    await engine.dispose()


async def test_what_is_no_transaction_is_refused(mysql_url: str) -> None:
    engine = create_async_engine(sqlalchemy_url(mysql_url))
    async with open_store(mysql_url) as store:
        pool = await asyncmy.create_pool(**connect_arguments(mysql_url), minsize=0)
        for wrong in (pool, engine, object(), "a transaction", mysql_url):
            with pytest.raises(CannotJoin):
                await refused(store, wrong)
        pool.close()
        await pool.wait_closed()
    await engine.dispose()


async def test_a_session_of_another_kind_of_database_is_refused(mysql_url: str) -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    async with open_store(mysql_url) as store, AsyncSession(engine) as session:
        with pytest.raises(OtherDatabase, match="sqlite"):
            await refused(store, session)
    await engine.dispose()


@every_kind
@pytest.mark.parametrize("with_tables", [False, True])
async def test_a_transaction_in_another_database_is_refused(
    mariadb_server: MariaDB,
    mysql_url: str,
    begin: Begin,
    with_tables: bool,
) -> None:
    with mariadb_server.fresh_database() as elsewhere:
        if with_tables:
            async with open_store(elsewhere):
                pass
        async with open_store(mysql_url) as store:
            with pytest.raises(OtherDatabase):
                async with begin(elsewhere) as transaction:
                    await refused(store, transaction)


async def test_nothing_is_written_into_another_database_that_has_tables_like_ours(
    mariadb_server: MariaDB,
    mysql_url: str,
) -> None:
    with mariadb_server.fresh_database() as elsewhere:
        async with open_store(mysql_url) as store, open_store(elsewhere) as other:
            await store.publish(message())
            await other.publish(message(b"theirs", timer_id="t"))
            deliveries = await claim(store)
            async with raw_connection(elsewhere) as transaction:
                for attempt in (
                    store.publish(message(), transaction=transaction),
                    store.publish(message(timer_id="new"), transaction=transaction),
                    store.publish(message(timer_id="t", on_conflict="replace"), transaction=transaction),
                    store.publish_batch([message()], transaction=transaction),
                    store.hold(deliveries, transaction=transaction),
                    store.ack(deliveries, transaction=transaction),
                    store.cancel(QUEUE, "t", transaction=transaction),
                    store.cancel_all(QUEUE, transaction=transaction),
                    store.reschedule(QUEUE, "t", HOUR, transaction=transaction),
                    store.peek(transaction=transaction),
                ):
                    with pytest.raises(OtherDatabase):
                        await attempt
                # Refused, and yet the caller's transaction goes on.
                await execute(transaction, "select 1")

            assert [delivery.body for delivery in await claim(other)] == [b"theirs"]
            assert await done(store, deliveries) == [WriteResult.WRITTEN]


async def test_tables_that_were_made_anew_are_known_again(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        async with raw_connection(mysql_url) as transaction:
            await store.publish(message(b"before"), transaction=transaction)
        await run(mysql_url, "update nightmail_meta set identity = unhex(replace(uuid(), '-', ''))")

        async with raw_connection(mysql_url) as transaction:
            await store.publish(message(b"after"), transaction=transaction)

        assert [delivery.body for delivery in await claim(store)] == [b"before", b"after"]


async def test_without_tables_a_transaction_is_told_so(mysql_url: str) -> None:
    store = MySQLStore(mysql_url)
    await store.open()
    async with raw_connection(mysql_url) as transaction:
        with pytest.raises(SchemaMissing):
            await refused(store, transaction)
        await execute(transaction, "select 1")
    await store.close()


async def test_a_session_goes_on_after_a_name_was_taken(mysql_url: str) -> None:
    engine = create_async_engine(sqlalchemy_url(mysql_url), isolation_level="REPEATABLE READ")
    async with open_store(mysql_url) as store:
        await store.publish(message(timer_id="t"))
        async with AsyncSession(engine) as session, session.begin():
            # At repeatable read it is found out by a duplicate key, which is the store's business alone.
            assert await store.publish(message(timer_id="t"), transaction=session) is None
            await store.publish(message(b"with a session"), transaction=session)
            count = (await session.execute(text("select count(*) from nightmail_messages"))).scalar()
            assert count == 2
    await engine.dispose()


async def test_a_message_acked_under_two_tokens_at_once_is_refused(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        await store.publish(message())
        lost = await store.claim([QUEUE], limit=1, lease=timedelta(0), token=uuid4())
        (held,) = await claim(store)

        async with raw_connection(mysql_url) as transaction:
            with pytest.raises(LeaseLost):
                await store.ack([*lost.deliveries, held], transaction=transaction)

        assert await done(store, [held]) == [WriteResult.WRITTEN]
