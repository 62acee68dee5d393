"""The tables: where they are, when they are right, and how they come to be."""

from __future__ import annotations

import asyncio

import pytest

from nightmail.errors import SchemaDrift, SchemaMissing, SchemaOutdated, StoreUnavailable
from nightmail.outcome import Dead, Done, Retry
from nightmail.records import DeadFilter
from nightmail.store import Settlement
from nightmail.stores.postgres import PostgresStore, check
from tests.stores.postgres.support import QUEUE, channel, claim, connection, done, message, open_store, until

pytestmark = pytest.mark.postgres


# ------------------------------------------------------------------------------------------- check


async def test_missing_tables_are_missed_by_every_verb(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    await store.open()

    for verb in (
        store.check,
        store.stats,
        lambda: store.publish(message()),
        lambda: store.publish(message(timer_id="t")),
        lambda: claim(store),
        lambda: store.cancel(QUEUE, "t"),
    ):
        with pytest.raises(SchemaMissing):
            await verb()
    await store.migrate()
    await store.check()
    await store.close()


async def test_a_missing_schema_is_a_missing_table(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, tables="nowhere.jobs")
    await store.open()

    with pytest.raises(SchemaMissing):
        await store.check()
    await store.close()


async def test_older_tables_are_outdated_and_newer_ones_are_told(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        with monkeypatch.context() as newer:
            newer.setattr(check, "VERSION", 2)
            with pytest.raises(SchemaOutdated) as raised:
                await store.check()
        assert (raised.value.found, raised.value.needed) == (1, 2)

        await own.execute("update nightmail_meta set version = 99")
        with pytest.raises(SchemaDrift, match="99"):
            await store.check()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("drop index nightmail_claim", "the index nightmail_claim is missing"),
        (
            "drop index nightmail_timer; create unique index nightmail_timer on nightmail_messages (queue, timer_key)",
            "the index nightmail_timer is 'unique btree (queue, timer_key)' instead of",
        ),
        (
            "drop index nightmail_head; "
            "create index nightmail_head on nightmail_messages (queue, head_key) where head_key is not null",
            "the index nightmail_head is 'btree",
        ),
        (
            "alter table nightmail_messages drop column expires_at",
            "the column messages.expires_at is missing",
        ),
        (
            "alter table nightmail_messages alter priority type integer",
            "the column messages.priority is 'integer not null'",
        ),
        (
            'alter table nightmail_messages alter timer_key type text collate "default"',
            "the column messages.timer_key is 'text'",
        ),
        ("alter table nightmail_dead alter reason drop not null", "the column dead.reason is 'text'"),
        (
            "alter table nightmail_messages drop constraint nightmail_messages_lease",
            "messages_lease is missing",
        ),
        ("alter table nightmail_messages add shop text not null", "messages.shop is not ours"),
        ("create unique index on nightmail_messages (queue)", "may refuse messages"),
        ("alter table nightmail_messages reset (fillfactor)", "fillfactor"),
        ("update nightmail_meta set look_interval = '1 hour'", "look interval"),
        ("drop table nightmail_delivered", 'the table "nightmail_delivered" is missing'),
    ],
)
async def test_tables_that_differ_are_told_apart(postgres_url: str, change: str, told: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await own.execute(change)

        with pytest.raises(SchemaDrift) as raised:
            await store.check()

        assert told in str(raised.value)


async def test_what_others_added_without_harm_is_left_alone(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await own.execute(
            "alter table nightmail_messages add note text; alter table nightmail_messages add made_at timestamptz "
            "not null default now(); create index mine on nightmail_messages (note)"
        )

        await store.check()

        await store.publish(message())
        deliveries = await claim(store)
        await store.settle([Settlement(delivery, Dead("rejected")) for delivery in deliveries])
        assert len(await store.dead(DeadFilter())) == 1


# ----------------------------------------------------------------------------------------- migrate


async def test_processes_that_migrate_at_the_same_time_make_the_tables_once(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url) for _ in range(5)]
    for store in stores:
        await store.open()

    await asyncio.gather(*(store.migrate() for store in stores))

    for store in stores:
        await store.check()
        await store.close()


async def test_a_migration_that_fails_leaves_nothing_behind(postgres_url: str) -> None:
    async with connection(postgres_url) as own:
        await own.execute("create table nightmail_dedup (mine text)")
        store = PostgresStore(postgres_url)
        await store.open()

        with pytest.raises(Exception, match="nightmail_dedup"):
            await store.migrate()

        assert await own.fetchval("select to_regclass('nightmail_messages')") is None
        await own.execute("drop table nightmail_dedup")
        await store.migrate()
        await store.check()
        await store.close()


async def test_migrating_again_keeps_the_identity_of_the_tables(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        before = await own.fetchrow("select * from nightmail_meta")
        await store.migrate()

        assert await own.fetchrow("select * from nightmail_meta") == before


async def test_whoever_may_only_use_the_tables_can_check_and_use_them(postgres_url: str) -> None:
    async with open_store(postgres_url, tables="mail.jobs") as store, connection(postgres_url) as own:
        name = "worker_" + (await own.fetchval("select current_database()"))[-8:]
        await own.execute(
            f"create role {name} login; grant usage on schema mail to {name}; "
            f"grant select, insert, update, delete on all tables in schema mail to {name}"
        )
        try:
            theirs = PostgresStore(postgres_url.replace("postgres@", f"{name}@"), tables="mail.jobs")
            await theirs.open()
            await theirs.check()
            await theirs.migrate()
            await theirs.publish(message(timer_id="t"))
            assert await done(theirs, await claim(theirs)) == ["written"]
            assert await store.stats() == {}
            await theirs.close()
        finally:
            await own.execute(f"drop owned by {name}; drop role {name}")


# -------------------------------------------------------------------------------- where they are


async def test_tables_may_have_another_prefix_and_live_in_a_schema_of_their_own(postgres_url: str) -> None:
    async with (
        open_store(postgres_url) as plain,
        open_store(postgres_url, tables="jobs") as prefixed,
        open_store(postgres_url, tables="mail.jobs") as elsewhere,
        connection(postgres_url) as own,
    ):
        stores = {b"plain": plain, b"prefixed": prefixed, b"elsewhere": elsewhere}
        for body, store in stores.items():
            await store.check()
            await store.publish(message(body, timer_id="t", ordering_key="k"))
        for body, store in stores.items():
            deliveries = await claim(store)
            assert [delivery.body for delivery in deliveries] == [body]
            await store.settle([Settlement(deliveries[0], Retry())])
            assert await store.cancel(QUEUE, "t")

        found = await own.fetch(
            "select schemaname || '.' || tablename as name from pg_tables where tablename like '%messages' order by 1"
        )
        assert [row["name"] for row in found] == [
            "mail.jobs_messages",
            "public.jobs_messages",
            "public.nightmail_messages",
        ]
        tables = ("public.nightmail_meta", "public.jobs_meta", "mail.jobs_meta")
        assert len({await channel(own, table) for table in tables}) == 3


async def test_tables_named_with_and_without_their_schema_wake_each_other(postgres_url: str) -> None:
    async with open_store(postgres_url) as plain, open_store(postgres_url, tables="public.nightmail") as full:
        with plain.listen([QUEUE]) as plainly, full.listen([QUEUE]) as fully:
            await until(lambda: plain.listening and full.listening)
            plainly.clear()
            fully.clear()

            await plain.publish(message())

            assert await fully.wait(10)
            assert await plainly.wait(10)


async def test_a_bell_hears_its_own_tables_and_no_others(postgres_url: str) -> None:
    async with open_store(postgres_url) as plain, open_store(postgres_url, tables="jobs") as other:
        with plain.listen([QUEUE]) as bell, other.listen([QUEUE]) as others:
            await until(lambda: plain.listening and other.listening)
            bell.clear()
            others.clear()

            await other.publish(message())

            assert await others.wait(10)
            assert not await bell.wait(0)


@pytest.mark.parametrize("tables", ["", "Jobs", 'jobs"; drop table notes; --', "a.b.c", "1st"])
def test_a_name_that_would_need_care_is_refused(tables: str) -> None:
    with pytest.raises(ValueError, match="cannot name our tables"):
        PostgresStore("postgresql://localhost/shop", tables=tables)


# ----------------------------------------------------------------------------------------- history


async def test_what_is_done_is_kept_when_it_is_asked_for(postgres_url: str) -> None:
    async with open_store(postgres_url, keep_delivered=True) as store, connection(postgres_url) as own:
        await store.publish(message(b"settled", headers={"a": 1}, timer_id="t", ordering_key="k", priority=3))
        await store.publish_batch([message(b"acked"), message(b"retried"), message(b"dead")])
        found = {delivery.body: delivery for delivery in await claim(store)}
        await store.settle(
            [
                Settlement(found[b"settled"], Done()),
                Settlement(found[b"retried"], Retry()),
                Settlement(found[b"dead"], Dead("rejected")),
            ]
        )
        async with own.transaction():
            await store.ack([found[b"acked"]], transaction=own)

        rows = await own.fetch("select * from nightmail_delivered order by id")
        assert [row["body"] for row in rows] == [b"settled", b"acked"]
        first = rows[0]
        assert (first["message_id"], first["queue"]) == (found[b"settled"].id, QUEUE)
        assert (first["timer_id"], first["ordering_key"], first["priority"]) == ("t", "k", 3)
        assert (first["headers"], first["attempts"], first["deliveries"]) == ('{"a":1}', 0, 1)
        assert first["published_at"] <= first["due_at"] <= first["delivered_at"]


async def test_what_is_done_is_gone_unless_it_is_asked_for(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.publish(message())
        await done(store, await claim(store))

        assert await own.fetchval("select count(*) from nightmail_delivered") == 0


async def test_a_store_that_was_never_opened_says_so() -> None:
    with pytest.raises(StoreUnavailable, match="open"):
        await PostgresStore("postgresql://localhost/shop").publish(message())
