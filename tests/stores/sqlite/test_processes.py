"""Several processes on one file: nothing is lost, nothing is handled twice, whichever process is killed."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nightmail.stores.sqlite import SQLiteStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import HOUR, QUEUE, bodies, claim_all, message
from tests.stores.sqlite import process as script

pytestmark = pytest.mark.sqlite


@asynccontextmanager
async def processes(file: Path, *parts: tuple[str, ...]) -> AsyncIterator[list[Process]]:
    """Processes that are ready; they are told to go together, and killed when the block is left."""
    running = [
        await asyncio.create_subprocess_exec(
            sys.executable, script.__file__, str(file), *part, stdin=PIPE, stdout=PIPE
        )
        for part in parts
    ]
    try:
        for process in running:
            assert await line(process) == "ready"
        for process in running:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            await process.stdin.drain()
        yield running
    finally:
        for process in running:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def line(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def first_lines(running: list[Process]) -> list[str]:
    """The next line of the first process that has one, and of others that have one just then."""
    waiting = [asyncio.create_task(line(process)) for process in running]
    done, late = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in late:
        task.cancel()
    await asyncio.wait(waiting)
    return [task.result() for task in done]


async def said(process: Process) -> list[str]:
    """All that a process says until it ends, as it should."""
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode().splitlines()


def is_sound(file: Path) -> bool:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_processes_that_start_together_make_the_tables_once(file: Path) -> None:
    async with processes(file, *[("migrate",)] * 4) as running:
        for process in running:
            await said(process)

    store = SQLiteStore(file)
    await store.open()
    await store.check()
    assert bodies(await store.peek()) == [b"migrated"] * 4
    await store.close()


async def test_every_message_of_every_publisher_is_handled_by_one_worker(
    store: SQLiteStore, file: Path
) -> None:
    parts = [("publish", "a", "150"), ("publish", "b", "150"), ("work",), ("work",)]
    async with processes(file, *parts) as (a, b, *workers):
        published = await said(a) + await said(b)
        handled: list[str] = []
        while len(handled) < 300:
            handled += await first_lines(workers)

    assert sorted(handled) == sorted(published)
    assert await store.stats() == {}
    assert is_sound(file)


async def test_what_a_killed_publisher_was_told_is_stored_is_stored(store: SQLiteStore, file: Path) -> None:
    async with processes(file, ("publish", "a", "100000")) as (publisher,):
        told = [await line(publisher) for _ in range(50)]
        publisher.kill()
        rest, _ = await publisher.communicate()
    told += rest.decode().splitlines()

    stored = {pending.body.decode() for pending in await store.peek(limit=100_000)}
    assert set(told) <= stored
    # At most one more for each of the eight publishes that were under way.
    assert len(stored) <= len(set(told)) + 8
    assert is_sound(file)


async def test_a_message_in_the_hands_of_a_killed_worker_is_delivered_again(file: Path) -> None:
    store = SQLiteStore(file)
    await store.open()
    await store.migrate()
    await store.publish(message(b"held"))
    async with processes(file, ("hold",)) as (worker,):
        assert await line(worker) == "held"
        worker.kill()
        await worker.wait()
    assert await claim_all(store) == []
    await store.close()

    later = SQLiteStore(file, clock=in_an_hour())
    await later.open()
    (delivery,) = await claim_all(later)
    assert (delivery.body, delivery.deliveries) == (b"held", 2)
    await later.close()


async def test_a_publish_of_another_process_rings(store: SQLiteStore, file: Path) -> None:
    with store.listen([QUEUE]) as bell:
        assert await bell.wait(5)
        bell.clear()
        async with processes(file, ("publish", "a", "1")) as (publisher,):
            assert await bell.wait(10)
            assert await said(publisher) == ["a 0"]


async def test_a_forked_child_is_told_to_open_the_store_itself(store: SQLiteStore, file: Path) -> None:
    async with processes(file, ("fork",)) as (parent,):
        (told,) = await said(parent)

    assert "opened before the process forked" in told
    assert bodies(await store.peek()) == [b"parent before", b"child", b"parent after"]
    assert is_sound(file)


def in_an_hour() -> ManualClock:
    return ManualClock(datetime.now(UTC) + HOUR)
