"""Rows that other software writes into our tables: what no client could read is refused, and nothing overflows."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest

from nightmail.errors import SchemaDrift
from nightmail.outcome import Reason, Release, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import Settlement
from nightmail.testing.conformance.build import LEASE, QUEUE, bodies, claim_letters, message
from tests.stores.postgres.support import connection, open_store
from tests.stores.shared.huge_bodies import HUGE, check_that_it_is_never_in_memory
from tests.stores.shared.odd_rows import OddRows
from tests.stores.support import EVERYTHING, bury, claim, settle, until

pytestmark = pytest.mark.postgres


class TestOddRows(OddRows):
    """On this store."""


INSERT = """
    insert into nightmail_messages (queue, priority, due_at, published_at, expires_at, attempts, headers, body)
    values ('orders', 0, $1::text::timestamptz, $2::text::timestamptz, $3::text::timestamptz, $4, '{}', 'odd')
"""
ODD = ["infinity", "-infinity", "20000-01-01", "4000-01-01 BC", "0001-01-01 00:00:00+00"]


@pytest.mark.parametrize("moment", ODD)
@pytest.mark.parametrize("column", [0, 1, 2], ids=["due_at", "published_at", "expires_at"])
async def test_a_time_that_no_client_can_read_is_refused(postgres_url: str, column: int, moment: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        values = ["2020-01-01", "2020-01-01", None]
        values[column] = moment
        with pytest.raises(asyncpg.CheckViolationError, match="nightmail_messages_times"):
            await own.execute(INSERT, *values, 0)

        await store.publish(message(b"neighbour"))
        assert [delivery.body for delivery in await claim(store)] == [b"neighbour"]


async def test_the_first_and_last_moments_that_are_taken_can_be_read(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await own.execute(INSERT, "0001-01-03 00:00:00+00", "0001-01-03 00:00:00+00", None, 0)
        await own.execute(INSERT, "2020-01-01", "2020-01-01", "9999-12-31 00:00:00+00", 0)
        await own.execute(INSERT, "9999-12-31 00:00:00+00", "2020-01-01", None, 0)

        claimed = await store.claim([QUEUE], limit=10, lease=timedelta(days=3_000_000), token=uuid4())
        assert len(claimed.deliveries) == 2
        assert claimed.next_in is not None
        assert len(await store.peek(QUEUE)) == 1


async def test_a_negative_counter_is_refused(postgres_url: str) -> None:
    async with open_store(postgres_url), connection(postgres_url) as own:
        with pytest.raises(asyncpg.CheckViolationError, match="nightmail_messages_counters"):
            await own.execute(INSERT, "2020-01-01", "2020-01-01", None, -1)


@pytest.mark.parametrize(
    "column",
    [
        "died_at",
        "due_at",
        "published_at",
        "first_attempt_at",
        "last_attempt_at",
        "lease_until",
        "claimed_at",
    ],
)
async def test_a_time_in_a_dead_letter_that_no_client_can_read_is_refused(
    postgres_url: str, column: str
) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await bury(store, b"letter")
        (held,) = await claim_letters(store)
        for moment in ODD:
            with pytest.raises(asyncpg.CheckViolationError, match="nightmail_dead_times"):
                await own.execute(f"update nightmail_dead set {column} = '{moment}'")

        assert await settle(store, [held], Release()) == [WriteResult.WRITTEN]
        assert bodies(await claim_letters(store)) == [b"letter"]


async def test_the_first_and_last_moments_that_a_dead_letter_may_have_can_be_read(postgres_url: str) -> None:
    first, last = "0001-01-03 00:00:00+00", "9999-12-31 00:00:00+00"
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await bury(store, b"first", b"last")
        await own.execute(
            "update nightmail_dead set died_at = at, published_at = at, first_attempt_at = at, last_attempt_at = at,"
            f" due_at = '{first}'"
            f" from (values ('first'::bytea, '{first}'::timestamptz), ('last', '{last}')) as given(name, at)"
            " where body = given.name"
        )

        assert [letter.died_at.year for letter in await store.dead(EVERYTHING)] == [9999, 1]
        assert (await store.summarize_dead(EVERYTHING)).count == 2
        claimed = await store.claim_dead([QUEUE], limit=10, lease=timedelta(days=2_900_000), token=uuid4())
        assert [delivery.published_at.year for delivery in claimed.deliveries] == [1, 9999]


@pytest.mark.parametrize("column", ["failures", "claims"])
async def test_a_negative_counter_of_a_dead_letter_is_refused(postgres_url: str, column: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await bury(store, b"letter")
        with pytest.raises(asyncpg.CheckViolationError, match="nightmail_dead_counters"):
            await own.execute(f"update nightmail_dead set {column} = -1")


@pytest.mark.parametrize("table", ["messages", "dead"])
@pytest.mark.parametrize("column", ["token", "lease_until", "claimed_at"])
async def test_half_a_lease_is_refused(postgres_url: str, table: str, column: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await bury(store, b"letter")
        await store.publish(message(b"message"))
        await claim_letters(store)
        await claim(store)
        with pytest.raises(asyncpg.CheckViolationError, match=f"nightmail_{table}_lease"):
            await own.execute(f"update nightmail_{table} set {column} = null")


@pytest.mark.parametrize("condition", ["lease", "counters", "times"])
@pytest.mark.parametrize("table", ["messages", "dead"])
async def test_tables_without_these_conditions_are_told_apart(
    postgres_url: str, table: str, condition: str
) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.check()
        await own.execute(f"alter table nightmail_{table} drop constraint nightmail_{table}_{condition}")
        with pytest.raises(SchemaDrift, match=f"{table}_{condition}"):
            await store.check()


async def test_a_body_that_is_too_large_frees_its_ordering_key_and_rings(postgres_url: str) -> None:
    async with (
        open_store(postgres_url) as store,
        open_store(postgres_url, max_body_bytes=100) as reader,
    ):
        await store.publish_batch(
            [message(b"x" * 101, ordering_key="k"), message(b"next", ordering_key="k"), message(b"other")]
        )
        with store.listen([QUEUE]) as bell:
            await until(lambda: store.listening)
            bell.clear()
            found = []
            full = True
            while full:
                claimed = await reader.claim([QUEUE], limit=10, lease=LEASE, token=uuid4())
                found += [delivery.body for delivery in claimed.deliveries]
                full = claimed.full

            assert sorted(found) == [b"next", b"other"]
            assert await bell.wait(20)
        (letter,) = await reader.dead(DeadFilter(reason=Reason.TOO_LARGE))
        assert letter.ordering_key == "k"


async def test_recall_finds_what_was_claimed_before_the_clock_was_set_back(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.publish(message(b"due"))
        token = uuid4()
        await store.claim([QUEUE], limit=1, lease=LEASE, token=token)
        # To the store's clock it is as if it had been claimed an hour too early.
        await own.execute("update nightmail_messages set due_at = due_at + interval '1 hour'")

        assert await store.recall([QUEUE], token) == 1


async def test_a_released_message_is_the_next_of_a_store_that_has_gone_on(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        await store.publish_batch([message(b"%d" % number) for number in range(40)])
        (first,) = await claim(store, limit=1)
        for _ in range(3):
            await claim(store, limit=5)

        await store.settle([Settlement(first, Release())])

        assert (await claim(store, limit=1))[0].body == b"0"


async def test_a_body_that_is_too_large_is_never_in_memory(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await store.publish_batch([message(b"huge"), message(b"small")])
        assert await own.execute(HUGE.format("::bytea")) == "UPDATE 1"

        await check_that_it_is_never_in_memory(store)
