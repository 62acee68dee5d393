"""The tables from SQLAlchemy's metadata and those of `nightmail migrate` are the same."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import Column, Integer, MetaData, Table
from sqlalchemy.ext.asyncio import create_async_engine

from nightmail import OutboxBroker
from nightmail.stores import open_store
from nightmail.tables import make_outbox_tables
from testkit.servers import Postgres


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


@pytest.mark.parametrize("tables", [None, "jobs", "night.mail"])
async def test_metadata_makes_the_tables_that_migrate_makes(
    postgres_server: Postgres, tables: str | None
) -> None:
    with postgres_server.fresh_database() as migrated, postgres_server.fresh_database() as created:
        store = open_store(migrated, tables=tables)
        await store.open()
        await store.migrate()
        await store.close()

        metadata = MetaData()
        Table("orders", metadata, Column("id", Integer, primary_key=True))
        ours = make_outbox_tables(metadata, tables)
        engine = create_async_engine(created.replace("postgresql://", "postgresql+asyncpg://"))
        async with engine.begin() as connection:
            if ours.messages.schema:
                await connection.exec_driver_sql(f'create schema "{ours.messages.schema}"')
            await connection.run_sync(lambda sync: metadata.create_all(sync, tables=list(ours)))
        await engine.dispose()

        assert dumped(postgres_server, created) == dumped(postgres_server, migrated)


async def test_tables_made_by_alembic_are_ready_to_use(postgres_url: str) -> None:
    metadata = MetaData()
    make_outbox_tables(metadata)
    engine = create_async_engine(postgres_url.replace("postgresql://", "postgresql+asyncpg://"))
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)

    async with OutboxBroker(engine, logger=None) as broker:
        sent = await broker.publish("x", "q", activate_in=3600)
        assert [pending.id for pending in await broker.pending()] == [sent]
    await engine.dispose()
