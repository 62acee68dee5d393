"""The tables from SQLAlchemy's metadata and those of `nightmail migrate` are the same."""

from __future__ import annotations

import re
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from nightmail import OutboxBroker
from nightmail.errors import SchemaDrift, StoreUnavailable
from nightmail.stores import open_store
from nightmail.tables import OutboxTables, make_outbox_tables
from testkit.servers import Postgres
from testkit.servers.mariadb import MariaDB
from tests.cli.support import nightmail
from tests.schema.conftest import Database

NAMING = {
    "ix": "ix_%(column_0_label)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "pk": "pk_%(table_name)s",
}


async def migrate(url: str, tables: str | None = None) -> None:
    store = open_store(url, tables=tables)
    await store.open()
    await store.migrate()
    await store.close()


async def check(url: str, tables: str | None = None) -> None:
    store = open_store(url, tables=tables)
    await store.open()
    try:
        await store.check()
    finally:
        await store.close()


def create(database: Database, metadata: MetaData, tables: str | None = None) -> OutboxTables:
    """Make our tables as SQLAlchemy does, in the schema that `tables` names."""
    ours = make_outbox_tables(metadata, tables, dialect=database.dialect)
    engine = create_engine(database.for_alembic)
    with engine.begin() as connection:
        if ours.messages.schema and database.dialect == "postgresql":
            connection.exec_driver_sql(f'create schema "{ours.messages.schema}"')
        metadata.create_all(connection, tables=list(ours))
    engine.dispose()
    return ours


# ------------------------------------------------------------------------------------ the same tables


def dumped(server: Postgres, url: str) -> str:
    """The schema as Postgres tells it, without what differs from run to run."""
    parts = urlsplit(url)
    dump = subprocess.run(
        [
            str(Path(server.program("postgres")).resolve().with_name("pg_dump")),
            "--schema-only",
            f"--host={parts.hostname}",
            f"--port={parts.port}",
            f"--username={parts.username}",
            parts.path.removeprefix("/"),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return re.sub(r"^(--.*|\\(un)?restrict.*)?\n", "", dump, flags=re.MULTILINE)


@pytest.mark.postgres
@pytest.mark.parametrize("tables", [None, "jobs", "night.mail"])
async def test_postgres_gets_the_tables_that_migrate_makes(
    postgres_server: Postgres, tables: str | None
) -> None:
    with postgres_server.fresh_database() as migrated, postgres_server.fresh_database() as created:
        await migrate(migrated, tables)
        metadata = MetaData()
        Table("orders", metadata, Column("id", Integer, primary_key=True))
        create(Database("postgresql", created), metadata, tables)

        assert dumped(postgres_server, created) == dumped(postgres_server, migrated)


def shown(server: MariaDB, url: str) -> dict[str, list[str]]:
    """The tables as MariaDB tells them. The order of indexes and constraints does not matter."""
    database = urlsplit(url).path.removeprefix("/")
    tables = server.sql(f"select table_name from information_schema.tables where table_schema = '{database}'")
    return {
        str(name): sorted(
            line.rstrip(",")
            for line in str(server.sql(f"show create table `{database}`.`{name}`")[0][1]).splitlines()
        )
        for (name,) in tables
    }


@pytest.mark.mysql
@pytest.mark.parametrize("tables", [None, "jobs"])
async def test_mariadb_gets_the_tables_that_migrate_makes(
    mariadb_server: MariaDB, tables: str | None
) -> None:
    with mariadb_server.fresh_database() as migrated, mariadb_server.fresh_database() as created:
        await migrate(migrated, tables)
        create(Database("mysql", created), MetaData(), tables)

        assert shown(mariadb_server, created) == shown(mariadb_server, migrated)


@pytest.mark.mysql
async def test_sqlalchemys_mariadb_dialect_makes_the_same_tables(mariadb_server: MariaDB) -> None:
    with mariadb_server.fresh_database() as migrated, mariadb_server.fresh_database() as created:
        await migrate(migrated)
        create(Database("mariadb", created), MetaData())

        assert shown(mariadb_server, created) == shown(mariadb_server, migrated)


@pytest.mark.mysql
async def test_the_tables_may_be_in_another_database_of_the_server(mariadb_server: MariaDB) -> None:
    with mariadb_server.fresh_database() as here, mariadb_server.fresh_database() as there:
        tables = f"{urlsplit(there).path.removeprefix('/')}.jobs"
        create(Database("mysql", here), MetaData(), tables)

        await check(here, tables)


def listed(file: str) -> dict[str, list[object]]:
    """Tables, indexes and triggers of a SQLite file, and what it tells of them beside their text."""
    with closing(sqlite3.connect(file)) as connection:
        things = connection.execute("SELECT type, name, tbl_name FROM sqlite_master").fetchall()
        options = {name: rest for _, name, *rest in connection.execute("PRAGMA table_list")}
        return {
            f"{kind} {name} on {table}": [
                options.get(name),
                connection.execute(f"PRAGMA table_xinfo({name})").fetchall(),
                connection.execute(f"PRAGMA index_xinfo({name})").fetchall(),
                sorted((each[1:]) for each in connection.execute(f"PRAGMA index_list({name})")),
            ]
            for kind, name, table in things
        }


@pytest.mark.sqlite
@pytest.mark.parametrize("tables", [None, "jobs"])
async def test_sqlite_gets_the_tables_that_migrate_makes(tmp_path: Path, tables: str | None) -> None:
    migrated, created = f"{tmp_path}/migrated.db", f"{tmp_path}/created.db"
    await migrate(f"sqlite:///{migrated}", tables)
    create(Database("sqlite", f"sqlite:///{created}"), MetaData(), tables)
    # Adds the triggers, and finds the same text.
    await check(f"sqlite:///{created}", tables)

    assert listed(created) == listed(migrated)


# -------------------------------------------------------------------------------------- ready to use


@pytest.mark.parametrize("tables", [None, "jobs"])
async def test_a_check_accepts_tables_made_from_the_metadata(database: Database, tables: str | None) -> None:
    create(database, MetaData(), tables)

    await check(database.url, tables)
    await check(database.url, tables)


async def test_migrate_accepts_tables_made_from_the_metadata(database: Database) -> None:
    create(database, MetaData())

    await migrate(database.url)
    await check(database.url)


async def test_names_and_schema_do_not_depend_on_what_the_metadata_says(database: Database) -> None:
    create(database, MetaData(schema="elsewhere", naming_convention=NAMING))

    await check(database.url)


async def test_a_check_refuses_a_table_that_lacks_a_column(database: Database) -> None:
    create(database, MetaData())
    engine = create_engine(database.for_alembic)
    with engine.begin() as connection:
        connection.exec_driver_sql("alter table nightmail_delivered drop column headers")
    engine.dispose()

    with pytest.raises(SchemaDrift):
        await check(database.url)


async def test_a_broker_works_on_tables_made_from_the_metadata(database: Database) -> None:
    create(database, MetaData())
    engine = create_async_engine(database.for_applications)

    async with OutboxBroker(engine, logger=None) as broker:
        sent = await broker.publish("x", "q", activate_in=3600)
        assert [pending.id for pending in await broker.pending()] == [sent]
    await engine.dispose()


@pytest.mark.sqlite
async def test_a_check_adds_the_triggers_that_sqlalchemy_cannot_describe(sqlite: Database) -> None:
    create(sqlite, MetaData())
    await check(sqlite.url)

    with closing(sqlite3.connect(sqlite.url.removeprefix("sqlite:///"))) as connection:
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    assert len(triggers) == 3


# ---------------------------------------------------------------------------------- what is refused


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(ValueError, match="'oracle' is not a database that we have tables for"):
        make_outbox_tables(MetaData(), dialect="oracle")


def test_a_schema_on_sqlite_is_refused() -> None:
    with pytest.raises(ValueError, match="SQLite has no schemas"):
        make_outbox_tables(MetaData(), "night.mail", dialect="sqlite")


# ------------------------------------------------------------------------- what only looks writes nothing

LOOKS = [
    ("check",),
    ("migrate", "--dry-run"),
    ("migrate", "--sql"),
    ("status", "--over", "0"),
    ("list",),
    ("workers",),
    ("pauses",),
    ("dead", "list"),
    ("dead", "groups"),
]


def noted(database: Database) -> tuple[int, int]:
    """How many versions are noted, and how many triggers there are."""
    engine = create_engine(database.for_alembic)
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("select count(*) from nightmail_meta").scalar_one()
        triggers = (
            connection.exec_driver_sql(
                "select count(*) from sqlite_master where type = 'trigger'"
            ).scalar_one()
            if database.dialect == "sqlite"
            else 0
        )
    engine.dispose()
    return rows, triggers


def test_commands_that_look_complete_no_tables_that_alembic_made(database: Database) -> None:
    create(database, MetaData())

    for command in LOOKS:
        ran = nightmail(*command, url=database.url)
        assert ran.code == 0, (command, ran.err)
        assert noted(database) == (0, 0), command
    # The servers of tests do not wait for their disks: that is all there is to find.
    found = {
        each["code"].partition("-")[2] for each in nightmail("doctor", "--json", url=database.url).answer
    }
    assert (found - {"durability", "version"}, noted(database)) == (set(), (0, 0))
    assert nightmail("publish", "orders", "7", url=database.url).code == 0
    rows, triggers = noted(database)
    assert (rows, triggers > 0) == (1, database.dialect == "sqlite")
    assert nightmail("list", url=database.url).out.count("orders") == 1


@pytest.mark.postgres
async def test_an_account_that_may_write_nothing_checks_tables_that_alembic_made(postgres: Database) -> None:
    create(postgres, MetaData())
    engine = create_engine(postgres.for_alembic, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        name = urlsplit(postgres.url).path.removeprefix("/")
        connection.exec_driver_sql(f'alter database "{name}" set default_transaction_read_only = on')
    engine.dispose()
    store = open_store(postgres.url)
    await store.open()

    await store.check(adopt=False)
    with pytest.raises(StoreUnavailable, match="ReadOnly"):
        await store.check()

    await store.close()
