"""From one version of the tables to the next, on each database, with a second version made up for the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import Final

import pytest
import sqlalchemy
from sqlalchemy import Engine, create_engine

from nightmail import Delivery, Message, SchemaDrift, SchemaOutdated, Worker
from nightmail.engine.settings import WorkerSettings
from nightmail.findings import Code, Finding, Severity
from nightmail.observe import Observer
from nightmail.operations.doctor import diagnose
from nightmail.store import FullStore
from nightmail.stores import open_store
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql import migrations
from tests.schema.conftest import Database

MODULES: Final = {
    "postgresql": ("postgres.migrate", "postgres.check", "postgres.examining"),
    "mysql": ("mysql.migrate", "mysql.check", "mysql.examining"),
    "sqlite": ("sqlite.check",),
}
COLUMN: Final = "alter table nightmail_messages add column tenant varchar(20);"
INDEX: Final = "create index nightmail_tenant on nightmail_messages (tenant, id);"
TABLE: Final = "create table nightmail_tenants (name varchar(20) not null primary key);"
SECOND: Final = f"-- serves: 1\n\n{COLUMN}\n\n{INDEX}\n\n{TABLE}\n"
FOR_NEW_CODE_ONLY: Final = f"-- serves: 2\n\n{COLUMN}\n"
BROKEN: Final = (
    f"-- serves: 1\n\n{COLUMN}\n\ncreate index nightmail_tenant on nightmail_messages (nothing);\n"
)


@contextmanager
def version_2(database: Database, step: str = SECOND) -> Iterator[None]:
    """Code whose tables are of version 2, and this step to get there."""
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES[database.dialect]:
            patch.setattr(import_module(f"nightmail.stores.{module}"), "VERSION", 2)
        patch.setattr(
            migrations,
            "_all_steps",
            lambda _package, names: iter([migrations.read_step(2, step, names)]),
        )
        yield


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[FullStore]:
    store = open_store(database.url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    """How to look into the database."""
    engine = create_engine(database.for_alembic)
    yield engine
    engine.dispose()


@pytest.fixture
async def store(database: Database) -> AsyncIterator[FullStore]:
    """A store of version 1."""
    async with opened(database) as store:
        await store.migrate()
        yield store


def meta(engine: Engine) -> tuple[int, int]:
    with engine.connect() as connection:
        version, serves = connection.execute(
            sqlalchemy.text("select version, serves from nightmail_meta")
        ).one()
        return int(version), int(serves)


def indexes(engine: Engine) -> set[str | None]:
    return {index["name"] for index in sqlalchemy.inspect(engine).get_indexes("nightmail_messages")}


def columns(engine: Engine) -> set[str]:
    return {column["name"] for column in sqlalchemy.inspect(engine).get_columns("nightmail_messages")}


async def test_a_step_changes_the_tables_and_keeps_the_messages(
    database: Database, store: FullStore, engine: Engine
) -> None:
    id_ = await store.publish(Message(queue="orders", body=b"kept", timer_id="reminder"))

    with version_2(database):
        async with opened(database) as newer:
            with pytest.raises(SchemaOutdated, match="at version 1, this code needs 2"):
                await newer.check()
            await newer.migrate()
            await newer.migrate()

    assert meta(engine) == (2, 1)
    assert ("tenant" in columns(engine), "nightmail_tenant" in indexes(engine)) == (True, True)
    (found,) = await store.peek("orders", timer_id="reminder")
    assert (found.id, found.body) == (id_, b"kept")


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
    with version_2(database):
        async with opened(database) as newer:
            assert [each.body for each in await newer.peek("orders")] == [b"old code"]


async def test_code_that_the_tables_no_longer_serve_is_told_to_be_updated(
    database: Database, store: FullStore
) -> None:
    with version_2(database, FOR_NEW_CODE_ONLY):
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
    database: Database, store: FullStore, engine: Engine
) -> None:
    with version_2(database, BROKEN):
        async with opened(database) as newer:
            with pytest.raises(Exception, match=r"(?i)nothing"):
                await newer.migrate()
    assert meta(engine) == (1, 1)
    await store.publish(Message(queue="orders", body=b"meanwhile"))

    with version_2(database):
        async with opened(database) as newer:
            await newer.migrate()

    assert meta(engine) == (2, 1)
    assert ("tenant" in columns(engine), "nightmail_tenant" in indexes(engine)) == (True, True)
    assert [each.body for each in await store.peek("orders")] == [b"meanwhile"]


async def test_several_processes_may_take_a_step_at_once(
    database: Database, store: FullStore, engine: Engine
) -> None:
    with version_2(database):
        async with opened(database) as a, opened(database) as b, opened(database) as c:
            await asyncio.gather(a.migrate(), b.migrate(), c.migrate())

    assert meta(engine) == (2, 1)


class Outages(Observer):
    """Counts how often the store could not be used."""

    failures = 0

    def store_unavailable(self, error: Exception, retry_in: object) -> None:
        self.failures += 1


async def test_workers_and_publishers_of_the_version_before_go_on_during_an_upgrade(
    database: Database, store: FullStore, engine: Engine
) -> None:
    handled: list[bytes] = []
    published: list[bytes] = []
    upgraded = asyncio.Event()
    seen = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        handled.append(delivery.body)
        seen.set()

    async def publish() -> None:
        after = 0
        while after < 20:  # Some before, some during, and twenty after.
            body = str(len(published)).encode()
            await store.publish(Message(queue="orders", body=body))
            published.append(body)
            after += upgraded.is_set()

    outages = Outages()
    worker = Worker(
        store, handle, queues=["orders"], settings=WorkerSettings(max_workers=4), observer=outages
    )
    running, publishing = asyncio.create_task(worker.run()), asyncio.create_task(publish())
    async with asyncio.timeout(60):
        await seen.wait()
        with version_2(database):
            async with opened(database) as newer:
                await newer.migrate()
        upgraded.set()
        await publishing
        while len(set(handled)) < len(published):
            seen.clear()
            await seen.wait()
        await worker.stop()
        await running

    assert meta(engine) == (2, 1)
    assert sorted(handled) == sorted(published)
    assert outages.failures == 0
    assert await store.stats() == {}


@pytest.mark.postgres
async def test_an_index_can_be_built_without_blocking_writers(postgres: Database) -> None:
    step = f"-- serves: 1\n-- alone\n\n{COLUMN.replace('column', 'column if not exists')}\n\n" + (
        "create index concurrently if not exists nightmail_tenant on nightmail_messages (tenant, id);\n"
    )
    async with opened(postgres) as store:
        await store.migrate()
    with version_2(postgres, step):
        async with opened(postgres) as newer:
            await newer.migrate()

    engine = create_engine(postgres.for_alembic)
    assert (meta(engine), "nightmail_tenant" in indexes(engine)) == ((2, 1), True)
    engine.dispose()


@pytest.mark.postgres
async def test_a_step_that_has_to_wait_for_a_lock_gives_up_and_changes_nothing(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightmail.stores.postgres.migrate.LOCK_SECONDS", 1)
    engine = create_engine(postgres.for_alembic)
    async with opened(postgres) as store:
        await store.migrate()
        with engine.connect() as reader:
            reader.execute(sqlalchemy.text("select count(*) from nightmail_messages")).one()
            with version_2(postgres):
                async with opened(postgres) as newer:
                    with pytest.raises(Exception, match=r"(?i)lock"):
                        await newer.migrate()
        await store.publish(Message(queue="orders", body=b"goes on"))

    assert meta(engine) == (1, 1)
    engine.dispose()


def test_a_step_must_say_which_code_its_tables_serve() -> None:
    with pytest.raises(ValueError, match="does not say which code its tables serve"):
        migrations.read_step(2, COLUMN, TableNames.parse(None))


def test_a_step_has_the_names_of_the_tables() -> None:
    names = TableNames.parse("shop")

    step = migrations.read_step(2, SECOND, names)

    assert f"alter table {names.quoted('messages')} add column" in step.script
    assert [COLUMN.split()[0] in step.statements[0], len(step.statements)] == [True, 3]


@pytest.mark.parametrize("module", [modules[0] for modules in MODULES.values()])
def test_each_version_has_its_step(module: str) -> None:
    version = import_module(f"nightmail.stores.{module}").VERSION
    package = f"nightmail.stores.{module.partition('.')[0]}"

    taken = migrations.steps(package, TableNames.parse(None), found=1, needed=version)

    assert [step.version for step in taken] == list(range(2, version + 1))
