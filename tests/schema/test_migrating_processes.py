"""Migrations with other processes: at the same time, killed half-way, and with code of the version before at work."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy

from nightmail import Message
from nightmail.store import FullStore
from tests.schema.conftest import EVERY, TABLES, Database
from tests.schema.process import LAST, Party
from tests.schema.versions import is_second, looking_into, looking_on, meta, opened, second, version_2
from tests.stores.support import until

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 100
WAITING: Final = {
    "postgresql": "select count(*) from pg_stat_activity where application_name = 'nightmail migrate' "
    "and wait_event_type = 'Lock' and datname = current_database()",
    "mysql": "select count(*) from information_schema.processlist where db = database() "
    "and state like 'Waiting for table metadata lock'",
}
"""How many migrations wait for a lock."""


@pytest.fixture(params=EVERY)
def database(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(request.param)
    return found


@asynccontextmanager
async def process(database: Database, *part: str) -> AsyncIterator[Process]:
    """A process that does this part, and is killed when the block is left."""
    arguments = ("-m", "tests.schema.process", database.dialect, database.url, *part)
    running = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdin=PIPE, stdout=PIPE, cwd=ROOT
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


async def ready(running: Process) -> None:
    assert running.stdout is not None
    while (line := (await running.stdout.readline()).strip()) != b"ready":
        assert line, "the process has ended"


async def go(running: Process) -> None:
    assert running.stdin is not None
    running.stdin.write(b"go\n")
    await running.stdin.drain()


async def test_several_processes_may_take_a_step_at_once(database: Database, store: FullStore) -> None:
    await store.publish_batch([Message(queue="orders", body=b"kept") for _ in range(50)])
    part = ("migrate", second(database))
    async with asyncio.timeout(SECONDS), process(database, *part) as a, process(database, *part) as b:
        await asyncio.gather(ready(a), ready(b))
        await asyncio.gather(go(a), go(b))
        with version_2(database):
            async with opened(database) as newer:
                await newer.migrate()

        assert [await a.wait(), await b.wait()] == [0, 0]
    assert (meta(database), is_second(database)) == ((2, 1), True)


# On Redis a script is never cut short. Between two of them: see `test_a_step_that_fails_half_way...`.
@pytest.mark.parametrize("database", TABLES, indirect=True)
async def test_a_process_that_is_killed_half_way_leaves_what_the_next_one_finishes(
    database: Database, store: FullStore
) -> None:
    await store.publish(Message(queue="orders", body=b"kept"))
    async with asyncio.timeout(SECONDS):
        if database.dialect == "sqlite":
            await _die_at_a_statement(database)
        else:
            await _kill_while_it_waits(database)

        with version_2(database):
            async with opened(database) as newer:
                await newer.migrate()

    assert (meta(database), is_second(database)) == ((2, 1), True)
    assert [each.body for each in await store.peek("orders")] == [b"kept"]


async def _die_at_a_statement(database: Database) -> None:
    """The process kills itself when two of three statements are done, and nothing is committed."""
    async with process(database, "die", second(database), "create index") as doomed:
        await ready(doomed)
        await go(doomed)

        assert await doomed.wait() == -9
    assert (meta(database), is_second(database)) == ((1, 1), False)


async def _kill_while_it_waits(database: Database) -> None:
    """One statement is done when it has to wait, and then it is killed."""
    with looking_into(database) as engine, engine.connect() as other:
        other.exec_driver_sql("select count(*) from nightmail_messages")
        async with process(database, "migrate", second(database)) as doomed:
            await ready(doomed)
            await go(doomed)
            with looking_on(engine) as own:
                waiting = sqlalchemy.text(WAITING[database.dialect])
                await until(lambda: bool(own.execute(waiting).scalar()), within=SECONDS)
            doomed.kill()
            await doomed.wait()
        assert meta(database) == (1, 1)


async def test_workers_and_publishers_of_the_version_before_go_on_during_an_upgrade(
    database: Database, store: FullStore
) -> None:
    lines: list[str] = []
    changed = asyncio.Event()

    async def read(running: Process) -> None:
        assert running.stdout is not None
        async for line in running.stdout:
            lines.append(line.decode().strip())
            changed.set()

    async def told(count: int, beginning: str) -> None:
        while sum(line.startswith(beginning) for line in lines) < count:
            changed.clear()
            await changed.wait()

    async with asyncio.timeout(SECONDS), process(database, "work") as old:
        reading = asyncio.create_task(read(old))
        await told(3, "handled old")

        with version_2(database):
            async with opened(database) as newer:
                await newer.migrate()
                assert meta(database) == (2, 1)
                party = Party(newer, "new")
                # Old code handles what new code publishes, while it goes on itself.
                await party.publish(10)
                await told(10, "handled new")
                # Both at work, then new code alone, with what old code still publishes.
                await party.start_worker()
                await party.publish(10)
                await go(old)
                await reading
                published, handled, outages = json.loads(lines[-1])
                everything = len(published) + len(party.published)
                await until(lambda: len({*handled, *party.handled}) == everything, within=SECONDS)
                await party.stop_worker()
                assert await newer.stats() == {}

        # Before the block kills it: Popen.kill takes the exit code of one that has just ended, and asyncio finds none.
        assert await old.wait() == 0
    assert sorted([*handled, *party.handled]) == sorted([*published, *party.published])
    assert set(published[-LAST:]) <= set(party.handled)
    assert (outages, party.outages.failures) == (0, 0)
