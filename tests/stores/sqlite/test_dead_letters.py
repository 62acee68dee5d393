"""Dead letters in SQLite: who holds one, what moves back, what is cleared away, and what blocks nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from nightmail.outcome import Retry, WriteResult
from nightmail.records import Swept
from nightmail.stores.sqlite import SQLiteStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    SECOND,
    bodies,
    claim_all,
    claim_letters,
    message,
)
from tests.stores.shared.dead_letters import RefusedDeadLetters
from tests.stores.sqlite.support import locked, unchecked
from tests.stores.support import EVERYTHING, bury, settle

pytestmark = pytest.mark.sqlite


class TestRefusedDeadLetters(RefusedDeadLetters):
    """On this store."""


def execute(file: Path, statement: str) -> None:
    with closing(unchecked(file)) as connection, connection:
        connection.execute(statement)


class TestClaiming:
    async def test_a_claim_that_finds_no_letter_neither_waits_nor_writes(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await bury(store, b"later")
        await settle(store, await claim_letters(store), Retry(HOUR))
        with closing(sqlite3.connect(file)) as observer:
            before = observer.execute("PRAGMA data_version").fetchall()

            with locked(file):
                claimed = await store.claim_dead([QUEUE], limit=10, lease=LEASE, token=uuid4())

            assert (list(claimed.deliveries), claimed.next_in) == ([], HOUR)
            assert observer.execute("PRAGMA data_version").fetchall() == before

    async def test_a_letter_that_was_changed_by_hand_does_not_stop_the_others(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await bury(store, b"before", b"tampered", b"after")
        execute(
            file, "UPDATE nightmail_dead SET headers = x'ff00', body = 'text', error = x'01' WHERE id = 2"
        )

        assert bodies(await store.dead(EVERYTHING)) == [b"after", b"text", b"before"]
        assert bodies(await claim_letters(store)) == [b"before", b"text", b"after"]

    async def test_a_letter_that_was_changed_by_hand_can_be_redriven(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await bury(store, b"tampered")
        execute(file, "UPDATE nightmail_dead SET headers = x'ff00'")

        assert len(await store.redrive(await store.dead(EVERYTHING))) == 1

        assert bodies(await claim_all(store)) == [b"tampered"]


class TestHolding:
    async def test_letters_cannot_be_extended_while_another_writes(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await bury(store, b"letter")
        letters = await claim_letters(store)

        with locked(file):
            assert await store.extend(letters, LEASE) == [WriteResult.BUSY]

        assert await store.extend(letters, LEASE) == [WriteResult.WRITTEN]


class TestClearingAway:
    async def test_a_sweep_in_vain_neither_waits_nor_writes(
        self, store: SQLiteStore, file: Path, clock: ManualClock
    ) -> None:
        await store.publish(message(timer_id="a", dedup_for=HOUR))
        await bury(store, b"held", queue="refunds")
        await claim_letters(store, "refunds")
        clock.advance(SECOND)
        with closing(sqlite3.connect(file)) as observer:
            before = observer.execute("PRAGMA data_version").fetchall()

            with locked(file):
                assert await store.sweep(older_than=timedelta(0), limit=10) == Swept()

            assert observer.execute("PRAGMA data_version").fetchall() == before

    async def test_no_limit_is_no_deletion(self, store: SQLiteStore, clock: ManualClock) -> None:
        await bury(store, b"letter")
        clock.advance(HOUR)

        assert await store.purge(EVERYTHING, limit=0) == 0
        assert await store.purge(EVERYTHING, limit=-1) == 0
        assert await store.sweep(older_than=MINUTE, limit=-1) == Swept()
