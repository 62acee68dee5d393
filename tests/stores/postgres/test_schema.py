"""The tables: where they are, when they are right, and how they come to be."""

from __future__ import annotations

import pytest

from nightmail.errors import SchemaMissing
from nightmail.outcome import Retry
from nightmail.store import Settlement
from nightmail.stores.postgres import PostgresStore
from nightmail.testing.conformance.build import QUEUE, message
from tests.stores.postgres.support import channel, connection, open_store
from tests.stores.shared.schema import Schema
from tests.stores.support import claim, done, until

pytestmark = pytest.mark.postgres


DRIFTS = [
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
        "drop index nightmail_claim; create index nightmail_claim on nightmail_messages (queue, priority, due_at, id) "
        "where priority >= 0 and (ordering_key is null or head_key is null)",
        "the index nightmail_claim is 'btree (queue, priority, due_at, id) where priority >= 0",
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
    (
        "alter table nightmail_messages drop constraint nightmail_messages_priority; "
        "alter table nightmail_messages add constraint nightmail_messages_priority check (priority between 0 and 99)",
        "messages_priority is 'check priority >= 0 and priority <= 99' instead of",
    ),
    ("alter table nightmail_messages add shop text not null", "messages.shop is not ours"),
    ("create unique index on nightmail_messages (queue)", "may refuse messages"),
    ("alter table nightmail_messages reset (fillfactor)", "fillfactor"),
    ("update nightmail_meta set look_interval = '1 hour'", "look interval"),
    ("drop table nightmail_delivered", 'the table "nightmail_delivered" is missing'),
]


class TestSchema(Schema):
    addition = (
        "alter table nightmail_messages add note text; alter table nightmail_messages add made_at timestamptz "
        "not null default now(); create index mine on nightmail_messages (note); "
        "alter table nightmail_messages add number bigint generated always as identity"
    )

    @pytest.fixture(params=DRIFTS, ids=[told for _, told in DRIFTS])
    def drift(self, request: pytest.FixtureRequest) -> tuple[str, str]:
        drift: tuple[str, str] = request.param
        return drift


# ------------------------------------------------------------------------------------------- check


async def test_a_missing_schema_is_a_missing_table(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, tables="nowhere.jobs")
    await store.open()

    with pytest.raises(SchemaMissing):
        await store.check()
    await store.close()


# ----------------------------------------------------------------------------------------- migrate


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


async def test_an_account_that_may_only_use_the_tables_can_check_and_use_them(postgres_url: str) -> None:
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
