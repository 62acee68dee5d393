"""A second version of the tables, and of the keys of Redis, made up for the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from importlib import import_module
from typing import Any, Final

import pytest
import redis
import sqlalchemy
from sqlalchemy import Engine, create_engine

from nightmail.store import FullStore
from nightmail.stores import open_store
from nightmail.stores.shared import migrations
from tests.schema.conftest import Database

MODULES: Final = {
    "postgresql": ("postgres.migrate", "postgres.check", "postgres.examining"),
    "mysql": ("mysql.migrate", "mysql.check", "mysql.examining"),
    "sqlite": ("sqlite.check",),
    "redis": ("redis.schema",),
}
"""Where each store has its version."""
COLUMN: Final = "alter table nightmail_messages add column tenant varchar(20);"
INDEX: Final = "create index nightmail_tenant on nightmail_messages (tenant, id);"
TABLE: Final = "create table nightmail_tenants (name varchar(20) not null primary key);"
# Each message that waits gets a tenant, in the order in which they are due.
TENANTS: Final = """
local q, from = queues[1], tonumber(ARGV[6]) or 0
local ids = redis.call('ZRANGE', q.due .. 0, from, from + tonumber(ARGV[5]) - 1)
for _, id in ipairs(ids) do
  redis.call('HSET', q.message .. id, 'tenant', '')
end
if #ids == tonumber(ARGV[5]) then
  return from + #ids
end
"""


def second(database: Database) -> str:
    """The step to version 2."""
    change = TENANTS if database.dialect == "redis" else f"{TABLE}\n\n{COLUMN}\n\n{INDEX}\n"
    return f"-- serves: 1\n\n{change}"


def for_new_code_only(database: Database) -> str:
    """The same, which version 1 cannot use."""
    return second(database).replace("serves: 1", "serves: 2")


def broken(database: Database) -> str:
    """The same, but it fails half-way."""
    if database.dialect == "redis":
        return second(database).replace("return from + #ids", "error('nothing more')")
    return second(database).replace("(tenant, id)", "(nothing)")


@contextmanager
def version_2(database: Database, step: str | None = None) -> Iterator[None]:
    """Code whose tables are of version 2, and this step to get there."""
    text = second(database) if step is None else step
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES[database.dialect]:
            patch.setattr(import_module(f"nightmail.stores.{module}"), "VERSION", 2)
        # So few at once that a step of a few messages takes several calls.
        patch.setattr("nightmail.stores.redis.schema.AT_ONCE", 2)
        patch.setattr(migrations, "_all_steps", lambda _package: iter([migrations.read_step(2, text)]))
        yield


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[FullStore]:
    """A store, open."""
    store = open_store(database.url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


# ------------------------------------------------------------------------------- what is in the database


@contextmanager
def looking_into(database: Database) -> Iterator[Engine]:
    """How to look into a database that has tables."""
    engine = create_engine(database.for_alembic)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def client(database: Database) -> Iterator[Any]:
    """How to look into Redis."""
    url = database.url.replace("redis+cluster://", "redis://")
    kind: Any = redis.RedisCluster if url != database.url else redis.Redis
    with closing(kind.from_url(url)) as own:
        yield own


def meta(database: Database) -> tuple[int, int]:
    """The version, and which code it serves."""
    if database.dialect == "redis":
        with client(database) as own:
            version, serves = own.hmget("{nightmail}:meta", "version", "serves")
            return int(version), int(serves)
    with looking_into(database) as engine, engine.connect() as connection:
        version, serves = connection.execute(
            sqlalchemy.text("select version, serves from nightmail_meta")
        ).one()
        return int(version), int(serves)


def is_second(database: Database) -> bool:
    """Whether everything is there that the step to version 2 makes."""
    if database.dialect == "redis":
        with client(database) as own:
            messages = list(own.scan_iter("{nightmail:*}:m:*", count=1000))
            return all(own.hexists(message, "tenant") for message in messages)
    with looking_into(database) as engine:
        inspector = sqlalchemy.inspect(engine)
        columns = {column["name"] for column in inspector.get_columns("nightmail_messages")}
        return (
            "tenant" in columns
            and "nightmail_tenant" in indexes(engine)
            and "nightmail_tenants" in inspector.get_table_names()
        )


def looking_on(engine: Engine) -> sqlalchemy.Connection:
    """A connection that sees what others do, and keeps none of them waiting."""
    return engine.connect().execution_options(isolation_level="AUTOCOMMIT")


def indexes(engine: Engine) -> set[str | None]:
    """The indexes of the messages that can be used."""
    return {index["name"] for index in sqlalchemy.inspect(engine).get_indexes("nightmail_messages")}
