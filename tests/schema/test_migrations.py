"""From one version of the tables to the next, on each database, with a second version made up for the test."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

import pytest
import sqlalchemy

from nightmail import Message, SchemaDrift, SchemaOutdated, StoreUnavailable
from nightmail.findings import Code, Finding, Severity
from nightmail.operations.doctor import diagnose
from nightmail.store import FullStore
from nightmail.stores.postgres.lane import MIGRATE
from nightmail.stores.shared import migrations
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.migrations import named
from tests.schema.conftest import EVERY, SERVERS, TABLES, Database
from tests.schema.versions import (
    COLUMN,
    MODULES,
    broken,
    for_new_code_only,
    indexes,
    is_second,
    looking_into,
    looking_on,
    meta,
    opened,
    second,
    version_2,
)
from tests.stores.support import until

CONCURRENTLY: Final = (
    "-- serves: 1\n-- alone\n\n"
    "create index concurrently if not exists nightmail_tenant on nightmail_messages (priority, id);\n"
)


@pytest.fixture(params=EVERY)
def database(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(request.param)
    return found


async def publish_some(store: FullStore) -> None:
    """More messages than a step on Redis changes at once, in two queues."""
    for queue in ("orders", "mail"):
        await store.publish_batch([Message(queue=queue, body=b"kept") for _ in range(5)])


async def test_a_step_changes_the_tables_and_keeps_the_messages(database: Database, store: FullStore) -> None:
    await publish_some(store)
    id_ = await store.publish(Message(queue="orders", body=b"timer", timer_id="reminder"))

    with version_2(database):
        async with opened(database) as newer:
            with pytest.raises(SchemaOutdated, match="at version 1, this code needs 2"):
                await newer.check()
            await newer.migrate()
            await newer.migrate()

    assert meta(database) == (2, 1)
    assert is_second(database)
    (found,) = await store.peek("orders", timer_id="reminder")
    assert (found.id, found.body) == (id_, b"timer")
    assert {queue: stats.ready for queue, stats in (await store.stats()).items()} == {"orders": 6, "mail": 5}


@pytest.mark.redis
async def test_an_empty_redis_gets_the_newest_version_without_a_step(redis: Database) -> None:
    with version_2(redis, broken(redis)):
        async with opened(redis) as newer:
            await newer.migrate()
            await newer.check()

    assert meta(redis) == (2, 2)


async def test_code_of_the_version_before_goes_on_with_tables_that_serve_it(
    database: Database, store: FullStore
) -> None:
    with version_2(database):
        async with opened(database) as newer:
            await newer.migrate()

    async with opened(database) as restarted:
        await restarted.check()
        await restarted.migrate()
        await restarted.publish(Message(queue="orders", body=b"old code"))
    assert meta(database) == (2, 1)
    with version_2(database):
        async with opened(database) as newer:
            assert [each.body for each in await newer.peek("orders")] == [b"old code"]


async def test_code_that_the_tables_no_longer_serve_is_told_to_be_updated(
    database: Database, store: FullStore
) -> None:
    with version_2(database, for_new_code_only(database)):
        async with opened(database) as newer:
            await newer.migrate()

    with pytest.raises(SchemaDrift, match="serves code of version 2 or later, and this is version 1: update"):
        await store.check()


async def told(store: FullStore, code: Code) -> list[Finding]:
    """What a doctor finds of this kind."""
    return [each for each in await diagnose(store) if each.code is code]


async def test_a_forgotten_migration_is_found_until_it_is_made(database: Database, store: FullStore) -> None:
    with version_2(database):
        async with opened(database) as newer:
            (found,) = await told(newer, Code.SCHEMA_OUTDATED)
            await newer.migrate()
            made = await told(newer, Code.SCHEMA_OUTDATED)

    assert (found.severity, found.lasting, made) == (Severity.FATAL, True, [])
    assert found.evidence.startswith("the tables are at version 1, this code needs 2.")
    assert found.remedy.startswith("`nightmail migrate`")


async def test_tables_that_are_newer_than_the_code_are_found_until_it_is_updated(
    database: Database, store: FullStore
) -> None:
    assert await told(store, Code.SCHEMA_NEWER) == []
    with version_2(database):
        async with opened(database) as newer:
            await newer.migrate()

    (found,) = await told(store, Code.SCHEMA_NEWER)
    with version_2(database):
        updated = await told(store, Code.SCHEMA_NEWER)

    assert (found.severity, found.lasting, updated) == (Severity.NOTICE, False, [])
    assert found.evidence == "they are at version 2 and serve code of version 1 or later; this is version 1"


async def test_a_step_that_fails_half_way_is_finished_by_the_next_attempt(
    database: Database, store: FullStore
) -> None:
    await publish_some(store)
    with version_2(database, broken(database)):
        async with opened(database) as newer:
            with pytest.raises(Exception, match=r"(?i)nothing|Redis refused"):
                await newer.migrate()
    assert (meta(database), is_second(database)) == ((1, 1), False)
    await store.publish(Message(queue="orders", body=b"meanwhile"))

    with version_2(database):
        async with opened(database) as newer:
            await newer.migrate()

    assert (meta(database), is_second(database)) == ((2, 1), True)
    assert [each.body for each in await store.peek("orders")] == [b"kept"] * 5 + [b"meanwhile"]


async def test_several_stores_may_take_a_step_at_once(database: Database, store: FullStore) -> None:
    await publish_some(store)
    with version_2(database):
        async with opened(database) as a, opened(database) as b, opened(database) as c:
            await asyncio.gather(a.migrate(), b.migrate(), c.migrate())

    assert (meta(database), is_second(database)) == ((2, 1), True)


# -------------------------------------------------------------------------------------------- locks


LOCKS: Final = {
    "postgresql": (
        "nightmail.stores.postgres.store.MIGRATE",
        # Still without end, if it is.
        replace(MIGRATE, lock_milliseconds=MIGRATE.lock_milliseconds // 50),
    ),
    "mysql": ("nightmail.stores.mysql.migrate.LOCK_SECONDS", 1),
    "sqlite": ("nightmail.stores.sqlite.store.LOCK_SECONDS", 0.2),
}
"""What says how long a migration waits for a lock, and less than that."""


def hold(connection: sqlalchemy.Connection) -> None:
    """Keep the messages from being changed until this connection's transaction ends."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("begin immediate")
    else:
        connection.exec_driver_sql("select count(*) from nightmail_messages")


@pytest.mark.parametrize("database", TABLES, indirect=True)
async def test_a_step_that_has_to_wait_for_a_lock_gives_up_and_changes_nothing(
    database: Database, store: FullStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*LOCKS[database.dialect])
    only_the_column = f"-- serves: 1\n\n{COLUMN}\n"
    with looking_into(database) as engine, version_2(database, only_the_column):
        async with opened(database) as newer, asyncio.timeout(60):
            with engine.connect() as other:
                hold(other)
                with pytest.raises(StoreUnavailable, match="locked"):
                    await newer.migrate()
            assert meta(database) == (1, 1)
            await store.publish(Message(queue="orders", body=b"goes on"))

            await newer.migrate()

    assert meta(database) == (2, 1)


@pytest.mark.postgres
async def test_a_step_outside_a_transaction_does_not_wait_longer(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*LOCKS["postgresql"])
    step = f"-- serves: 1\n-- alone\n\n{COLUMN.replace('column', 'column if not exists')}\n"
    async with opened(postgres) as store:
        await store.migrate()
    with looking_into(postgres) as engine, version_2(postgres, step), engine.connect() as other:
        hold(other)
        async with opened(postgres) as newer, asyncio.timeout(60):
            with pytest.raises(StoreUnavailable, match="keeps the tables locked"):
                await newer.migrate()

    assert meta(postgres) == (1, 1)


@pytest.mark.parametrize("database", SERVERS, indirect=True)
async def test_a_repair_does_not_wait_longer(
    database: Database, store: FullStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*LOCKS[database.dialect])
    with looking_into(database) as engine:
        drop_indexes(engine)
        with engine.connect() as other:
            other.exec_driver_sql("update nightmail_messages set priority = 1")
            async with asyncio.timeout(60):
                with pytest.raises(StoreUnavailable, match="keeps the tables locked"):
                    await store.migrate(repair=True)

    await store.migrate(repair=True)
    await store.check()


# ------------------------------------------------------------------------------------------- repair


def drop_indexes(engine: sqlalchemy.Engine) -> None:
    """Two of the indexes of the messages."""
    table = " on nightmail_messages" if engine.dialect.name != "postgresql" else ""
    with engine.begin() as connection:
        for index in ("claim", "head"):
            connection.exec_driver_sql(f"drop index nightmail_{index}{table}")


@pytest.mark.parametrize("database", SERVERS, indirect=True)
async def test_several_stores_may_repair_at_once(database: Database, store: FullStore) -> None:
    for _ in range(5):
        with looking_into(database) as engine:
            drop_indexes(engine)
        async with opened(database) as a, opened(database) as b, opened(database) as c:
            await asyncio.gather(*(each.migrate(repair=True) for each in (a, b, c)))

        await store.check()


@pytest.mark.postgres
async def test_an_index_can_be_built_without_blocking_writers(postgres: Database) -> None:
    async with opened(postgres) as store:
        await store.migrate()
    with version_2(postgres, CONCURRENTLY):
        async with opened(postgres) as a, opened(postgres) as b, opened(postgres) as c:
            await asyncio.gather(a.migrate(), b.migrate(), c.migrate())

    with looking_into(postgres) as engine:
        assert (meta(postgres), "nightmail_tenant" in indexes(engine)) == ((2, 1), True)


@pytest.mark.postgres
async def test_an_index_whose_building_was_cut_off_is_built_by_the_next_attempt(postgres: Database) -> None:
    async with opened(postgres) as store:
        await store.migrate()
    with looking_into(postgres) as engine, version_2(postgres, CONCURRENTLY):
        async with opened(postgres) as newer, asyncio.timeout(60):
            with engine.connect() as other, looking_on(engine) as own:
                # The index is there, and then its building waits for the end of this transaction.
                other.exec_driver_sql("update nightmail_messages set priority = 1")
                cut_off = asyncio.create_task(newer.migrate())
                await until(lambda: _building(own) is not None, within=60)
                own.exec_driver_sql(f"select pg_terminate_backend({_building(own)})")
                with pytest.raises(StoreUnavailable):
                    await cut_off
                await until(lambda: _building(own) is None, within=60)
                assert _is_valid(own) is False
            assert meta(postgres) == (1, 1)

            await newer.migrate()

        with looking_on(engine) as own:
            assert (meta(postgres), _is_valid(own)) == ((2, 1), True)


def _building(connection: sqlalchemy.Connection) -> Any:
    """The process of the server that waits in the middle of building the index."""
    return connection.exec_driver_sql(
        "select a.pid from pg_stat_activity as a join pg_index as i "
        "on i.indexrelid = to_regclass('nightmail_tenant') and not i.indisvalid "
        "where a.application_name = 'nightmail migrate' and a.wait_event_type = 'Lock' "
        "and a.datname = current_database()"
    ).scalar()


def _is_valid(connection: sqlalchemy.Connection) -> Any:
    return connection.exec_driver_sql(
        "select indisvalid from pg_index where indexrelid = to_regclass('nightmail_tenant')"
    ).scalar()


# -------------------------------------------------------------------------------------- how it is written


def test_a_step_must_say_which_code_its_tables_serve() -> None:
    with pytest.raises(ValueError, match="does not say which code it still serves"):
        migrations.read_step(2, COLUMN)


def test_a_step_has_the_names_of_the_tables() -> None:
    names = TableNames.parse("shop")

    step = named(migrations.read_step(2, second(Database("mysql", ""))), names)

    assert f"alter table {names.quoted('messages')} add column" in step.script
    assert ["create table" in step.statements[0], len(step.statements)] == [True, 3]


@pytest.mark.parametrize("module", [modules[0] for modules in MODULES.values()])
def test_each_version_has_its_step(module: str) -> None:
    version = import_module(f"nightmail.stores.{module}").VERSION
    package = f"nightmail.stores.{module.partition('.')[0]}"

    taken = migrations.steps(package, found=1, needed=version)

    assert [step.version for step in taken] == list(range(2, version + 1))
