"""Alembic's autogenerate beside our tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata, produce_migrations, render_python_code
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Column, Connection, Integer, MetaData, Table, create_engine
from sqlalchemy.dialects import mysql, postgresql

from nightmail.stores import open_store
from nightmail.tables import make_outbox_tables, skip_outbox_tables
from tests.schema.conftest import Database


async def migrated(database: Database) -> None:
    store = open_store(database.url)
    await store.open()
    await store.migrate()
    await store.close()


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    """How Alembic reaches the database."""
    engine = create_engine(database.for_alembic)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def proposed(connection: Connection, metadata: MetaData, **options: Any) -> list[str]:
    """What autogenerate would do, in short."""
    context = MigrationContext.configure(connection, opts={"compare_type": True, **options})
    return [
        operation[0] if isinstance(operation, tuple) else operation[0][0]
        for operation in compare_metadata(context, metadata)
    ]


async def test_without_a_word_alembic_would_drop_our_tables(
    database: Database, connection: Connection
) -> None:
    await migrated(database)

    assert "remove_table" in proposed(connection, MetaData())


async def test_with_the_helper_alembic_leaves_our_tables_alone(
    database: Database, connection: Connection
) -> None:
    await migrated(database)
    metadata = MetaData()
    Table("orders", metadata, Column("id", Integer, primary_key=True))

    assert proposed(connection, metadata, include_object=skip_outbox_tables()) == ["add_table"]


async def test_an_include_object_of_the_users_own_is_asked_too(
    database: Database, connection: Connection
) -> None:
    await migrated(database)
    metadata = MetaData()
    for name in ("orders", "legacy"):
        Table(name, metadata, Column("id", Integer, primary_key=True))

    def not_legacy(_thing: Any, name: str | None, *_: Any) -> bool:
        return name != "legacy"

    include = skip_outbox_tables(include_object=not_legacy)
    assert proposed(connection, metadata, include_object=include) == ["add_table"]


async def test_alembic_finds_nothing_to_do_for_tables_in_the_metadata(
    database: Database, connection: Connection
) -> None:
    await migrated(database)
    metadata = MetaData()
    make_outbox_tables(metadata, dialect=database.dialect)

    assert proposed(connection, metadata, compare_server_default=True) == []


async def test_alembic_proposes_exactly_our_tables_for_an_empty_database(
    database: Database, connection: Connection
) -> None:
    metadata = MetaData()
    ours = make_outbox_tables(metadata, dialect=database.dialect)

    context = MigrationContext.configure(connection, opts={"compare_type": True})
    operations = compare_metadata(context, metadata)

    assert sorted((operation[0], operation[1].name) for operation in operations) == sorted(
        [("add_table", table.name) for table in ours]
        + [("add_index", str(index.name)) for table in ours for index in table.indexes]
    )


async def test_a_migration_that_alembic_wrote_makes_tables_that_a_check_accepts(
    database: Database, connection: Connection
) -> None:
    metadata = MetaData()
    make_outbox_tables(metadata, dialect=database.dialect)
    context = MigrationContext.configure(connection)
    operations = produce_migrations(context, metadata).upgrade_ops
    assert operations is not None
    written = render_python_code(operations)

    known = {"op": Operations(context), "sa": sqlalchemy, "mysql": mysql, "postgresql": postgresql}
    exec(f"if True:\n    {written}", known)  # noqa: S102 - what Alembic would put into a file
    connection.commit()

    store = open_store(database.url)
    await store.open()
    await store.check()
    await store.close()
    assert proposed(connection, metadata) == []
