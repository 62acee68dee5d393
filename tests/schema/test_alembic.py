"""Alembic's autogenerate beside our tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Column, Connection, Integer, MetaData, Table, create_engine

from nightmail.stores import open_store
from nightmail.tables import make_outbox_tables, skip_outbox_tables


@pytest.fixture(params=["postgres_url"])
def url(request: pytest.FixtureRequest) -> str:
    fresh: str = request.getfixturevalue(request.param)
    return fresh


async def migrated(url: str) -> None:
    store = open_store(url)
    await store.open()
    await store.migrate()
    await store.close()


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    """How Alembic reaches the database."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
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


async def test_without_a_word_alembic_would_drop_our_tables(url: str, connection: Connection) -> None:
    await migrated(url)

    assert "remove_table" in proposed(connection, MetaData())


async def test_with_the_helper_alembic_leaves_our_tables_alone(url: str, connection: Connection) -> None:
    await migrated(url)
    metadata = MetaData()
    Table("orders", metadata, Column("id", Integer, primary_key=True))

    assert proposed(connection, metadata, include_object=skip_outbox_tables()) == ["add_table"]


async def test_an_include_object_of_the_users_own_is_asked_too(url: str, connection: Connection) -> None:
    await migrated(url)
    metadata = MetaData()
    for name in ("orders", "legacy"):
        Table(name, metadata, Column("id", Integer, primary_key=True))

    def not_legacy(_thing: Any, name: str | None, *_: Any) -> bool:
        return name != "legacy"

    include = skip_outbox_tables(include_object=not_legacy)
    assert proposed(connection, metadata, include_object=include) == ["add_table"]


async def test_alembic_finds_nothing_to_do_for_tables_in_the_metadata(
    url: str, connection: Connection
) -> None:
    await migrated(url)
    metadata = MetaData()
    make_outbox_tables(metadata)

    assert proposed(connection, metadata) == []
