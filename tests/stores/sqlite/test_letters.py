"""Dead letters in SQLite: who holds one, what moves back, what is cleared away, and what stands in nobody's way."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from nightmail.errors import LeaseLost, NightmailError
from nightmail.message import DeadDelivery
from nightmail.outcome import Dead, Done, Retry, WriteResult
from nightmail.records import DeadFilter, DeadLetter, Swept
from nightmail.store import Settlement
from nightmail.stores.sqlite import SQLiteStore
from nightmail.testing.clock import ManualClock
from tests.stores.sqlite.support import (
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    SECOND,
    bodies,
    claim,
    locked,
    message,
    settle,
    unchecked,
)

pytestmark = pytest.mark.sqlite

EVERYTHING = DeadFilter()


async def bury(store: SQLiteStore, *texts: bytes, **options: Any) -> list[DeadLetter]:
    """Letters with these bodies, in this order."""
    for text in texts:
        await store.publish(message(text, **options))
        await settle(store, await claim(store, options.get("queue", QUEUE)), Dead("rejected", "no"))
    return (await store.dead(EVERYTHING, limit=len(texts)))[::-1]


async def claim_letters(store: SQLiteStore, *queues: str, limit: int = 100) -> list[DeadDelivery]:
    claimed = await store.claim_dead(queues or (QUEUE,), limit=limit, lease=LEASE, token=uuid4())
    return [delivery for delivery in claimed.deliveries if isinstance(delivery, DeadDelivery)]


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

    async def test_of_several_queues_the_longest_due_come_first(
        self, store: SQLiteStore, clock: ManualClock
    ) -> None:
        for text, queue in ((b"1", "a"), (b"2", "b"), (b"3", "a"), (b"4", "b")):
            await bury(store, text, queue=queue)
            clock.advance(SECOND)

        assert bodies(await claim_letters(store, "b", "a", "b", limit=3)) == [b"1", b"2", b"3"]

    async def test_a_letter_that_somebody_changed_by_hand_does_not_stop_the_others(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await bury(store, b"before", b"tampered", b"after")
        execute(
            file, "UPDATE nightmail_dead SET headers = x'ff00', body = 'text', error = x'01' WHERE id = 2"
        )

        assert bodies(await store.dead(EVERYTHING)) == [b"after", b"text", b"before"]
        assert bodies(await claim_letters(store)) == [b"before", b"text", b"after"]

    async def test_a_letter_that_somebody_changed_by_hand_can_be_redriven(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await bury(store, b"tampered")
        execute(file, "UPDATE nightmail_dead SET headers = x'ff00'")

        assert len(await store.redrive(await store.dead(EVERYTHING))) == 1

        assert bodies(await claim(store)) == [b"tampered"]

    async def test_large_letters_are_claimed_whole(self, store: SQLiteStore) -> None:
        await bury(store, b"x" * 4_000_000, b"", b"y" * 900_000)

        assert [len(body) for body in bodies(await claim_letters(store))] == [4_000_000, 0, 900_000]


class TestHolding:
    async def test_a_publish_of_whoever_looks_after_a_letter_is_fenced_by_the_lease_on_that(
        self, store: SQLiteStore, clock: ManualClock
    ) -> None:
        await bury(store, b"letter")
        (letter,) = await claim_letters(store)

        assert await store.publish(message(b"in its name"), own=letter) is not None

        clock.advance(LEASE)
        await claim_letters(store)
        with pytest.raises(LeaseLost):
            await store.publish(message(b"too late"), own=letter)
        assert bodies(await store.peek()) == [b"in its name"]

    async def test_a_letter_is_not_taken_for_the_message_that_has_its_id(self, store: SQLiteStore) -> None:
        await store.publish(message(b"bearer", timer_id="a"))
        (bearer,) = await claim(store)
        await bury(store, b"letter")
        (letter,) = await claim_letters(store)
        assert letter.id == bearer.id

        # To the bearer's own handler the name would be free.
        assert await store.publish(message(timer_id="a"), own=letter) is None

        assert await settle(store, [bearer], Done()) == [WriteResult.WRITTEN]

    async def test_letters_cannot_be_extended_while_somebody_else_writes(
        self, store: SQLiteStore, file: Path
    ) -> None:
        await bury(store, b"letter")
        letters = await claim_letters(store)

        with locked(file):
            assert await store.extend(letters, LEASE) == [WriteResult.BUSY]

        assert await store.extend(letters, LEASE) == [WriteResult.WRITTEN]

    async def test_a_letter_whose_settlement_is_refused_does_not_fail_its_neighbours(
        self, store: SQLiteStore, file: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        await bury(store, b"1 s3cret", b"2 s3cret", b"3 s3cret")
        one, two, three = await claim_letters(store)
        execute(
            file,
            f"CREATE TRIGGER refuse BEFORE DELETE ON nightmail_dead WHEN old.id = {two.id}"
            " BEGIN SELECT raise(ABORT, 'it stays'); END",
        )

        with caplog.at_level(logging.ERROR):
            results = await store.settle(
                [Settlement(one, Done()), Settlement(two, Done()), Settlement(three, Retry())]
            )

        assert results == [WriteResult.WRITTEN, WriteResult.BUSY, WriteResult.WRITTEN]
        assert f"dead letter {two.id}" in caplog.text
        assert "s3cret" not in caplog.text

    async def test_letters_that_were_handled_are_not_among_what_was_delivered(
        self, store: SQLiteStore, engine: AsyncEngine, file: Path, clock: ManualClock
    ) -> None:
        keeping = SQLiteStore(file, clock=clock, keep_delivered=True)
        await keeping.open()
        await bury(keeping, b"settled", b"acked")
        settled, acked = await claim_letters(keeping)

        await settle(keeping, [settled], Done())
        async with AsyncSession(engine) as session, session.begin():
            await keeping.ack([acked], transaction=session)

        clock.advance(HOUR)
        assert await keeping.dead(EVERYTHING) == []
        assert await keeping.sweep(older_than=MINUTE, limit=10) == Swept()
        await keeping.close()


class TestRedriving:
    async def test_a_letter_that_is_refused_among_the_messages_costs_nobody_a_letter(
        self, store: SQLiteStore, file: Path
    ) -> None:
        letters = await bury(store, b"s3cret", b"refused", b"s3cret too")
        execute(
            file,
            "CREATE TRIGGER refuse BEFORE INSERT ON nightmail_messages WHEN new.body = x'72656675736564'"
            " BEGIN SELECT raise(ABORT, 'no'); END",
        )

        with pytest.raises(NightmailError) as raised:
            await store.redrive(letters)

        assert "s3cret" not in repr(raised.value)
        assert await store.peek() == []
        assert await store.dead(EVERYTHING) == letters[::-1]

    async def test_the_last_of_those_that_can_move_gets_the_name(self, store: SQLiteStore) -> None:
        first, second, third = await bury(store, b"first", b"second", b"third", timer_id="a")
        (held,) = await claim_letters(store, limit=1)
        assert held.id == first.id

        assert len(await store.redrive([third, second, first])) == 1

        assert bodies(await store.peek()) == [b"second"]
        assert bodies(await store.dead(EVERYTHING)) == [b"third", b"first"]

    async def test_a_queue_that_cannot_be_one_is_refused_and_nothing_moves(self, store: SQLiteStore) -> None:
        letters = await bury(store, b"stays")

        with pytest.raises(ValueError, match="queue"):
            await store.redrive(letters, to="")

        assert await store.dead(EVERYTHING) == letters


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

    async def test_nothing_is_older_than_time_itself(self, store: SQLiteStore) -> None:
        letters = await bury(store, b"letter")

        assert await store.sweep(older_than=timedelta.max, limit=10) == Swept()
        assert await store.purge(DeadFilter(older_than=timedelta.max), limit=10) == 0
        assert await store.dead(DeadFilter(older_than=timedelta.max)) == []
        assert await store.dead(EVERYTHING) == letters

    async def test_no_limit_is_no_deletion(self, store: SQLiteStore, clock: ManualClock) -> None:
        await bury(store, b"letter")
        clock.advance(HOUR)

        assert await store.purge(EVERYTHING, limit=0) == 0
        assert await store.purge(EVERYTHING, limit=-1) == 0
        assert await store.sweep(older_than=MINUTE, limit=-1) == Swept()

    @pytest.mark.parametrize(
        ("which", "expected"),
        [
            (DeadFilter(queue="a", ids=(1, 2, 3)), [b"3", b"1"]),
            (DeadFilter(queue="a", reason="rejected", error="no", older_than=MINUTE), [b"3", b"1"]),
            (DeadFilter(queue="b"), [b"4", b"2"]),
            (DeadFilter(ids=(4, 1, 99)), [b"4", b"1"]),
            (DeadFilter(queue="b", ids=(1,)), []),
            (DeadFilter(queue="a", older_than=HOUR * 2), []),
        ],
    )
    async def test_what_is_listed_is_what_is_purged(
        self, store: SQLiteStore, clock: ManualClock, which: DeadFilter, expected: list[bytes]
    ) -> None:
        for text, queue in ((b"1", "a"), (b"2", "b"), (b"3", "a"), (b"4", "b")):
            await bury(store, text, queue=queue)
        clock.advance(HOUR)

        assert bodies(await store.dead(which)) == expected
        assert await store.purge(which, limit=10) == len(expected)
        assert await store.dead(which) == []
        assert len(await store.dead(EVERYTHING)) == 4 - len(expected)
