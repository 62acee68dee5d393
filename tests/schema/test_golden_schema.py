"""The tables as the database itself describes them: a change of the schema is seen in a diff, and never by accident."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import Connection, create_engine, text

from nightmail.stores import open_store
from nightmail.stores.redis import RedisStore
from nightmail.testing.clock import ManualClock
from tests.schema import keys
from tests.schema.conftest import Database
from tests.schema.versions import client
from tests.stores.support import opened

HERE: Final = Path(__file__).parent / "golden"
UPDATE: Final = "UPDATE_GOLDEN"
WHAT_TO_DO: Final = f"""
The tables, or keys, are not those of {{file}}. If you meant to change them, write a step for databases that have them
(src/nightmail/stores/shared/migrations.py says how), then write the file again, look at its diff, and commit it:

    {UPDATE}=1 pytest tests/schema/test_golden_schema.py
"""
OF_POSTGRES: Final = """
    select c.relname, 1 as part, a.attnum::text, a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
        || case when a.attnotnull then ' not null' else '' end
        || case when a.attidentity = 'a' then ' generated always as identity' else '' end
        || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
    from pg_class as c join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    left join pg_attrdef as d on d.adrelid = c.oid and d.adnum = a.attnum
    where c.relname like 'nightmail%' and c.relkind = 'r'
    union all
    select c.relname, 2, n.conname, n.conname || ' ' || pg_get_constraintdef(n.oid)
    from pg_class as c join pg_constraint as n on n.conrelid = c.oid where c.relname like 'nightmail%'
    union all
    select c.relname, 3, i.relname, pg_get_indexdef(i.oid)
    from pg_class as c join pg_index as x on x.indrelid = c.oid join pg_class as i on i.oid = x.indexrelid
    where c.relname like 'nightmail%'
    union all
    select c.relname, 4, 'options', 'with (' || array_to_string(c.reloptions, ', ') || ')'
    from pg_class as c where c.relname like 'nightmail%' and c.relkind = 'r' and c.reloptions is not null
"""


def described(database: Database) -> str:
    """The tables, in the words of the database."""
    engine = create_engine(database.for_alembic)
    try:
        with engine.connect() as connection:
            match database.dialect:
                case "postgresql":
                    return "\n".join(_by_postgres(connection)) + "\n"
                case "mysql":
                    return "\n\n".join(_by_mysql(connection)) + "\n"
                case _:
                    return "\n\n".join(_by_sqlite(connection)) + "\n"
    finally:
        engine.dispose()


def _by_postgres(connection: Connection) -> Iterator[str]:
    rows = connection.execute(text(OF_POSTGRES)).all()
    shown = ""
    for table, _, _, line in sorted(
        rows, key=lambda row: (row[0], row[1], f"{row[2]:>4}" if row[1] == 1 else row[2])
    ):
        if table != shown:
            yield f"{'' if not shown else chr(10)}{table}"
            shown = table
        yield f"    {line}"


def _by_mysql(connection: Connection) -> Iterator[str]:
    tables = sorted(str(name) for (name,) in connection.execute(text("show tables like 'nightmail%'")))
    for table in tables:
        yield str(connection.execute(text(f"show create table {table}")).one()[1])


def _by_sqlite(connection: Connection) -> Iterator[str]:
    for (definition,) in connection.execute(
        text(
            "select sql from sqlite_master where sql is not null and tbl_name like 'nightmail%' order by type, name"
        )
    ):
        yield str(definition)


async def test_the_tables_are_those_of_the_golden_file(database: Database) -> None:
    store = open_store(database.url)
    await store.open()
    await store.migrate()
    await store.close()

    compare(f"{database.dialect}.txt", described(database))


@pytest.mark.redis
async def test_the_keys_of_redis_are_those_of_the_golden_file(redis: Database) -> None:
    clock = ManualClock()
    async with opened(RedisStore(redis.url, clock=clock, keep_delivered=True)) as store:
        await keys.fill(store, clock)

    with client(redis) as own:
        compare("redis.txt", keys.described(own))


def compare(name: str, found: str) -> None:
    """Fail unless it is what the golden file says; with `UPDATE_GOLDEN` set, write that instead."""
    file = HERE / name
    if os.environ.get(UPDATE):
        file.write_text(found, "utf-8")
    elif found != file.read_text("utf-8"):
        pytest.fail(WHAT_TO_DO.format(file=file.relative_to(HERE.parents[2])) + "\n" + found, pytrace=False)
