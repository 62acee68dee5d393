"""A Django project publishes inside `transaction.atomic()`."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nightmail.stores.sqlite import SQLiteStore
from tests.stores.sqlite.support import QUEUE, bodies

pytestmark = pytest.mark.sqlite

SHOP = Path(__file__).with_name("django_shop.py")


class Shop:
    """A project in a process of its own, which has Django's settings to itself."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SHOP)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    async def __call__(self, store: SQLiteStore, part: str) -> str:
        """What this part of the project prints."""
        return await asyncio.to_thread(self._ask, f"{part}\t{store.file}\n")

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line)
        printed: list[str] = []
        for answer in self._process.stdout:
            if answer == ".\n":
                return "".join(printed).strip()
            printed.append(answer)
        raise AssertionError(f"the project has failed: {''.join(printed)}")

    def close(self) -> None:
        """End the process."""
        _ = self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    shop = Shop()
    yield shop
    shop.close()


def effects(store: SQLiteStore) -> list[str]:
    with closing(sqlite3.connect(store.file)) as connection:
        return [value for (value,) in connection.execute("SELECT value FROM effects")]


class TestDjango:
    async def test_what_is_published_in_an_atomic_block_is_committed_with_it_and_wakes_workers(
        self, store: SQLiteStore, shop: Shop
    ) -> None:
        with store.listen([QUEUE]) as bell:
            await store._runtime.writer.read(lambda connection: None)
            bell.clear()
            await shop(store, "commit")

            assert await bell.wait(5)
        assert bodies(await store.peek()) == [b"proxy", b"wrapper"]
        assert effects(store) == ["effect"]

    async def test_what_is_published_in_an_atomic_block_is_rolled_back_with_it(
        self, store: SQLiteStore, shop: Shop
    ) -> None:
        await shop(store, "roll_back")

        assert (await store.peek(), effects(store)) == ([], [])

    async def test_an_inner_block_that_is_rolled_back_takes_the_message_along(
        self, store: SQLiteStore, shop: Shop
    ) -> None:
        await shop(store, "savepoint")

        assert bodies(await store.peek()) == [b"kept"]

    async def test_the_block_stays_usable_after_a_conflict(self, store: SQLiteStore, shop: Shop) -> None:
        await shop(store, "conflict")

        assert bodies(await store.peek()) == [b"first"]
        assert effects(store) == ["effect"]

    async def test_batches_cancelling_and_moving_go_through_it_too(
        self, store: SQLiteStore, shop: Shop
    ) -> None:
        await shop(store, "every_verb")

        assert sorted(bodies(await store.peek())) == [b"moved", b"one", b"two"]

    async def test_outside_a_transaction_it_is_told_to_open_an_atomic_block(
        self, store: SQLiteStore, shop: Shop
    ) -> None:
        told = await shop(store, "outside")

        assert told.startswith("NotInTransaction")
        assert "transaction.atomic()" in told
        assert await store.peek() == []

    async def test_a_block_that_will_be_rolled_back_is_refused(self, store: SQLiteStore, shop: Shop) -> None:
        told = await shop(store, "doomed")

        assert told.startswith("NotInTransaction Django rolls this transaction back")

    async def test_a_connection_to_another_file_is_refused(self, store: SQLiteStore, shop: Shop) -> None:
        assert (await shop(store, "other_file")).startswith("OtherDatabase")

    async def test_a_block_that_read_before_somebody_wrote_is_refused_with_advice(
        self, store: SQLiteStore, shop: Shop
    ) -> None:
        told = await shop(store, "stale")

        assert told.startswith("StaleTransaction")
        assert '"transaction_mode": "IMMEDIATE"' in told
        assert effects(store) == ["meanwhile"]

    async def test_a_block_that_begins_immediately_may_read_first(
        self, store: SQLiteStore, shop: Shop
    ) -> None:
        assert await shop(store, "immediate") == "database is locked"

        assert bodies(await store.peek()) == [b"published"]

    async def test_a_message_does_not_appear_among_the_queries_that_django_keeps(
        self, store: SQLiteStore, shop: Shop
    ) -> None:
        assert await shop(store, "debug") == "False"

    async def test_a_row_that_is_refused_leaves_the_block_usable_and_the_message_unseen(
        self, store: SQLiteStore, shop: Shop
    ) -> None:
        with closing(sqlite3.connect(store.file)) as connection:
            connection.execute(
                "CREATE TRIGGER refuse BEFORE INSERT ON nightmail_messages BEGIN SELECT raise(ABORT, 'no'); END"
            )

        told = await shop(store, "refused_row")

        assert told == "Refused SQLite refused the row (SQLITE_CONSTRAINT_TRIGGER): no"
        assert effects(store) == ["effect"]
