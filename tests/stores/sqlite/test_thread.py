"""The thread that writes: who shares a transaction, who waits for the lock, and what cancelling does."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from nightmail.errors import Refused, StoreUnavailable
from nightmail.stores.sqlite import link
from nightmail.stores.sqlite.jobs import Work
from nightmail.stores.sqlite.thread import ConnectionThread
from tests.stores.sqlite.support import Connections, has_arrived, locked, note, noted

pytestmark = pytest.mark.sqlite

LONG = timedelta(hours=1)
"""A lease."""


class TestWritingTogether:
    async def test_sixteen_who_wait_share_one_commit(
        self, thread: ConnectionThread, connections: Connections, file: Path
    ) -> None:
        with locked(file):
            waiting = [asyncio.create_task(thread.write(note(str(number)))) for number in range(16)]
            await asyncio.sleep(0)
            await has_arrived(thread)
            connections.statements.clear()

        assert await asyncio.gather(*waiting) == [str(number) for number in range(16)]

        assert noted(file) == [str(number) for number in range(16)]
        assert connections.count("COMMIT") == 1

    async def test_one_that_fails_takes_back_only_its_own(self, thread: ConnectionThread, file: Path) -> None:
        def fails(connection: sqlite3.Connection) -> None:
            note("half done")(connection)
            raise LookupError("on purpose")

        with locked(file):
            before = asyncio.create_task(thread.write(note("before")))
            failing = asyncio.create_task(thread.write(fails))
            refused = asyncio.create_task(thread.write(note("refused")))
            after = asyncio.create_task(thread.write(note("after")))
            await asyncio.sleep(0)
            await has_arrived(thread)

        with pytest.raises(LookupError, match="on purpose"):
            await failing
        with pytest.raises(Refused, match="CONSTRAINT"):
            await refused
        assert (await before, await after) == ("before", "after")
        assert noted(file) == ["before", "after"]

    async def test_an_answer_comes_only_after_the_commit(
        self, thread: ConnectionThread, connections: Connections
    ) -> None:
        committed = []

        await thread.write(note("a"), then=lambda text: committed.append(connections.count("COMMIT")))

        assert committed == [1]

    async def test_only_what_must_last_waits_for_the_disk(
        self, thread: ConnectionThread, connections: Connections
    ) -> None:
        def durability(connection: sqlite3.Connection) -> int:
            ((level,),) = connection.execute("PRAGMA synchronous").fetchall()
            return int(level)

        normal, full = 1, 2
        assert await thread.write(durability, lasting=False) == normal
        assert await thread.write(durability) == full
        assert await thread.write(durability, lasting=False) == normal
        both = asyncio.gather(thread.write(durability, lasting=False), thread.write(durability))
        assert full in await both


class TestTheLock:
    async def test_a_caller_that_finds_nothing_to_write_does_not_wait_for_it(
        self, thread: ConnectionThread, connections: Connections, file: Path
    ) -> None:
        with locked(file):
            assert (
                await thread.write(note("never"), look=lambda connection: "nothing to do") == "nothing to do"
            )

        assert connections.count("BEGIN IMMEDIATE") == 0

    async def test_reading_goes_on_while_others_wait_for_it(
        self, thread: ConnectionThread, file: Path
    ) -> None:
        with locked(file):
            waiting = asyncio.create_task(thread.write(note("a")))
            await asyncio.sleep(0)

            found = await thread.read(lambda c: c.execute("SELECT count(*) FROM notes").fetchall())

            assert found == [(0,)]
            assert not waiting.done()
        assert await waiting == "a"

    async def test_a_transaction_has_it_before_its_first_statement(
        self, thread: ConnectionThread, file: Path
    ) -> None:
        def read_and_write(connection: sqlite3.Connection) -> str:
            connection.execute("SELECT count(*) FROM notes").fetchall()
            # Without it, another could write now, and what was read would no longer be so.
            refused = pytest.raises(sqlite3.OperationalError, match="locked")
            with closing(sqlite3.connect(file, timeout=0)) as other, refused:
                other.execute("INSERT INTO notes VALUES ('another')")
            return note("a")(connection)

        await thread.write(read_and_write)

        assert noted(file) == ["a"]

    async def test_patience_ends_in_an_error_and_nothing_is_written(
        self, thread: ConnectionThread, file: Path
    ) -> None:
        with locked(file), pytest.raises(StoreUnavailable, match="locked"):
            await thread.write(note("a"), patience=0.05)

        assert noted(file) == []

    async def test_patience_may_end_in_an_answer(self, thread: ConnectionThread, file: Path) -> None:
        with locked(file):
            answer = await thread.write(note("a"), patience=0.05, when_locked_out=lambda: "busy")

        assert answer == "busy"
        assert noted(file) == []

    async def test_each_has_its_own_patience(self, thread: ConnectionThread, file: Path) -> None:
        with locked(file):
            patient = asyncio.create_task(thread.write(note("patient")))
            with pytest.raises(StoreUnavailable):
                await thread.write(note("impatient"), patience=0.05)

        assert await patient == "patient"
        assert noted(file) == ["patient"]


class TestUrgentWrites:
    async def test_what_is_urgent_goes_before_all_who_wait(
        self, thread: ConnectionThread, file: Path
    ) -> None:
        with locked(file):
            ordinary = [asyncio.create_task(thread.write(note(str(number)))) for number in range(300)]
            urgent = asyncio.create_task(thread.write(note("urgent"), urgent=True))
            await asyncio.sleep(0)
            await has_arrived(thread)

        await urgent
        await asyncio.gather(*ordinary)
        assert noted(file)[0] == "urgent"

    async def test_what_is_urgent_does_not_wait_as_sqlite_waits(
        self, thread: ConnectionThread, connections: Connections, file: Path
    ) -> None:
        with locked(file):
            urgent = asyncio.create_task(thread.write(note("urgent"), urgent=True))
            # SQLite's own waiting would ask once in each of our turns, and pause ever longer in between.
            while connections.count("BEGIN IMMEDIATE") < 50:
                await has_arrived(thread)

        assert await urgent == "urgent"

    async def test_how_long_others_had_the_lock_is_known_to_the_next_holder(
        self, thread: ConnectionThread, connections: Connections, file: Path
    ) -> None:
        with locked(file):
            waiting = asyncio.create_task(thread.write(lambda connection: thread.locked_out_for(LONG)))
            while connections.count("BEGIN IMMEDIATE") < 3:
                await has_arrived(thread)

        assert await waiting > 0
        assert await thread.write(lambda connection: thread.locked_out_for(LONG)) == 0

    async def test_a_lock_out_of_half_a_lease_concerns_the_transactions_right_after_it_too(
        self, thread: ConnectionThread, connections: Connections, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def asked(lease: timedelta) -> Work[float]:
            return lambda connection: thread.locked_out_for(lease)

        monkeypatch.setattr(link, "A_CHANCE", 3600.0)
        with locked(file):
            waiting = asyncio.create_task(thread.write(asked(LONG)))
            while connections.count("BEGIN IMMEDIATE") < 3:
                await has_arrived(thread)

        locked_out = await waiting
        assert locked_out > 0
        # Keepers of other processes may not have had the lock since.
        assert await thread.write(asked(timedelta(seconds=locked_out * 1.9))) == locked_out
        assert await thread.write(asked(timedelta(seconds=locked_out * 2.1))) == 0
        monkeypatch.setattr(link, "A_CHANCE", 0.0)
        assert await thread.write(asked(timedelta(seconds=locked_out * 1.9))) == 0

    async def test_how_long_the_lock_was_waited_for_lately_is_remembered_for_a_while(
        self, thread: ConnectionThread, connections: Connections, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(link, "LATELY", 3600.0)
        with locked(file):
            waiting = asyncio.create_task(thread.write(note("a")))
            while connections.count("BEGIN IMMEDIATE") < 3:
                await has_arrived(thread)
        await waiting

        assert await thread.write(lambda connection: thread.waited_lately) > 0.02
        monkeypatch.setattr(link, "LATELY", 0.0)
        await thread.write(lambda connection: None)
        assert await thread.write(lambda connection: thread.waited_lately) < 0.02


class TestErrands:
    @pytest.mark.parametrize(
        "error", [LookupError("on purpose"), StoreUnavailable("on purpose"), sqlite3.OperationalError()]
    )
    async def test_an_errand_that_fails_does_not_end_the_thread(
        self, thread: ConnectionThread, error: Exception
    ) -> None:
        def fails(connection: sqlite3.Connection) -> None:
            raise error

        thread.run_errand(fails)

        async with asyncio.timeout(5):
            assert await thread.write(note("next")) == "next"

    async def test_whatever_ends_the_thread_no_caller_is_left_waiting(self, connections: Connections) -> None:
        thread = ConnectionThread("test", connections)

        def ends(connection: sqlite3.Connection) -> None:
            raise SystemExit

        thread.run_errand(ends)

        async with asyncio.timeout(5):
            with pytest.raises(StoreUnavailable):
                await thread.write(note("lost"))
        assert not thread.usable


class TestCancelling:
    async def test_what_was_cancelled_before_it_began_is_not_done(
        self, thread: ConnectionThread, file: Path
    ) -> None:
        with locked(file):
            cancelled = asyncio.create_task(thread.write(note("cancelled")))
            other = asyncio.create_task(thread.write(note("other")))
            await asyncio.sleep(0)
            await has_arrived(thread)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled

        await other
        assert noted(file) == ["other"]

    async def test_what_was_cancelled_while_it_ran_is_done_whole_and_tells_who_is_concerned(
        self, thread: ConnectionThread, file: Path
    ) -> None:
        begun, go_on = threading.Event(), threading.Event()
        told: list[str] = []

        def slow(connection: sqlite3.Connection) -> str:
            note("first half")(connection)
            begun.set()
            assert go_on.wait(5)
            return note("second half")(connection)

        writing = asyncio.create_task(thread.write(slow, then=told.append))
        assert await asyncio.to_thread(begun.wait, 5)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        go_on.set()

        await has_arrived(thread)
        assert noted(file) == ["first half", "second half"]
        assert told == ["second half"]

    async def test_a_read_that_is_not_awaited_any_more_is_left_out(self, thread: ConnectionThread) -> None:
        busy, go_on = threading.Event(), threading.Event()
        read: list[str] = []

        def occupy(connection: sqlite3.Connection) -> bool:
            busy.set()
            return go_on.wait(5)

        first = asyncio.create_task(thread.read(occupy))
        assert await asyncio.to_thread(busy.wait, 5)
        cancelled = asyncio.create_task(thread.read(lambda connection: read.append("cancelled")))
        await asyncio.sleep(0)
        cancelled.cancel()
        go_on.set()

        await first
        await has_arrived(thread)
        assert read == []

    async def test_a_storm_of_cancellations_leaves_no_lock_behind(
        self, thread: ConnectionThread, file: Path
    ) -> None:
        for round_ in range(50):
            tasks = [asyncio.create_task(thread.write(note(f"{round_}.{number}"))) for number in range(4)]
            for _ in range(round_ % 4):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await has_arrived(thread)

        with locked(file):
            pass
        assert await thread.write(note("last")) == "last"
