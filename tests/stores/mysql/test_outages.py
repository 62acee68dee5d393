"""A server that restarts, connections that die, replies that are lost: nothing is lost, and it goes on by itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from asyncmy.errors import OperationalError

from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.outcome import Dead, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.stores.mysql import MySQLStore
from nightmail.stores.mysql.errors import TooLarge
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from testkit.servers.mariadb import MariaDB
from tests.stores.mysql.support import (
    Interference,
    MySQLBackend,
    connection,
    execute,
    once,
    open_store,
    run,
    waits_for_a_lock,
    watched_store,
)
from tests.stores.shared.lost_replies import LostReplies, What
from tests.stores.shared.outages import Outages
from tests.stores.support import claim, done, until

pytestmark = pytest.mark.mysql


class TestLostReplies(LostReplies):
    carried_out = True
    words: ClassVar[dict[What, str]] = {
        "publish": "insert",
        "timer": "commit",
        "claim": "commit",
        "settle": "delete",
    }

    @asynccontextmanager
    async def reply_lost(self, backend: MySQLBackend, what: What) -> AsyncIterator[None]:
        interference = Interference()
        interference.after = once(ConnectionResetError("gone"), when=self.words[what])
        async with interference.at_work():
            yield


class TestOutages(Outages):
    """On this store."""


# ----------------------------------------------------------------------------------------- restart


async def test_connections_that_were_idle_for_long_are_reopened_before_the_server_closes_them(
    mysql_url: str,
) -> None:
    async with watched_store(mysql_url) as (store, interference):
        await claim(store)
        assert store._opening.now is not None
        first = store._opening.now.claim_lane.link
        assert first is not None
        # The server's limit is eight hours by default, ours five minutes.
        assert first._longest_idle == 300
        first._longest_idle = 0

        await claim(store)

        assert store._opening.now.claim_lane.link is not first
        assert first.connection is interference.opened[1]
        assert interference.open == 2


# ------------------------------------------------------------------------------------ lost replies

every_publish = pytest.mark.parametrize(
    "verb",
    [
        pytest.param(lambda store: store.publish(message()), id="publish"),
        pytest.param(lambda store: store.publish(message(timer_id="t")), id="timer"),
        pytest.param(
            lambda store: store.publish(message(timer_id="t", on_conflict="replace")), id="replacement"
        ),
        pytest.param(lambda store: store.publish_batch([message()]), id="batch"),
    ],
)


@every_publish
async def test_a_publish_whose_connection_was_killed_meanwhile_is_uncertain_and_not_stored(
    mysql_url: str,
    verb: Callable[[MySQLStore], Awaitable[Any]],
) -> None:
    async with open_store(mysql_url) as store, connection(mysql_url) as own:
        assert store._opening.now is not None
        link = store._opening.now.publish_lane.link
        assert link is not None
        await execute(own, "lock tables nightmail_messages write")
        task: asyncio.Future[Any] = asyncio.ensure_future(verb(store))
        await until(lambda: waits_for_a_lock(mysql_url))
        await run(mysql_url, f"kill {link.connection.thread_id()}")
        await asyncio.wait([task])
        await execute(own, "unlock tables")

        assert isinstance(task.exception(), PublishUncertain)
        assert await store.peek() == []


async def test_a_claim_whose_commit_fails_hands_nothing_out(mysql_url: str) -> None:
    async with watched_store(mysql_url) as (store, interference):
        await store.publish(message())
        token = uuid4()
        interference.before = once(ConnectionResetError("gone"), when="commit")

        with pytest.raises(StoreUnavailable):
            await store.claim([QUEUE], limit=2, lease=LEASE, token=token)

        assert await store.recall([QUEUE], token) == 0
        assert len(await claim(store)) == 1


# ------------------------------------------------------------------------------ refused for the moment

MOMENTARY = {
    1213: "Deadlock found when trying to get lock; try restarting transaction",
    1205: "Lock wait timeout exceeded; try restarting transaction",
    1020: "Record has changed since last read in table",
    1047: "WSREP has not yet prepared node for application use",
}


@pytest.mark.parametrize("number", MOMENTARY)
async def test_what_the_server_refuses_for_the_moment_is_asked_again_and_counted(
    mysql_url: str,
    number: int,
) -> None:
    async with watched_store(mysql_url) as (store, interference):

        def refuse(words: str) -> None:
            interference.before = once(OperationalError(number, MOMENTARY[number]), when=words)

        refuse("insert")
        assert await store.publish(message(b"plain")) is not None
        refuse("commit")
        assert await store.publish(message(b"timer", timer_id="t")) is not None
        refuse("skip locked")
        deliveries = await claim(store, limit=1)
        refuse("commit")
        deliveries += await claim(store)
        assert [delivery.body for delivery in deliveries] == [b"plain", b"timer"]
        assert [delivery.deliveries for delivery in deliveries] == [1, 1]
        refuse("nowait")
        assert await store.extend(deliveries, LEASE) == [WriteResult.WRITTEN, WriteResult.WRITTEN]
        refuse("delete")
        assert await done(store, deliveries) == [WriteResult.WRITTEN, WriteResult.WRITTEN]

        # A row that is locked is passed over by a settlement and a renewal, and no second try is needed.
        assert store.retried[number] == (4 if number == 1205 else 6)
        assert await store.stats() == {}


async def test_a_server_that_goes_on_refusing_is_unavailable(mysql_url: str) -> None:
    async with watched_store(mysql_url) as (store, interference):

        def refuse(statements: tuple[str, ...]) -> None:
            if any("insert" in statement for statement in statements):
                raise OperationalError(1047, MOMENTARY[1047])

        interference.before = refuse

        with pytest.raises(StoreUnavailable, match="1047"):
            await store.publish(message())

        assert store.retried[1047] == 5
        # A connection to a node that is not ready is not kept: the next may reach another.
        assert len(interference.opened) == 6


def refusing(*numbers: int | None) -> Callable[[tuple[str, ...]], None]:
    """Refuse one commit after the other with these errors, or let it through; the last stands for all that follow."""
    left = list(numbers)

    def strike(statements: tuple[str, ...]) -> None:
        if "commit" in statements and (number := left.pop(0) if len(left) > 1 else left[0]) is not None:
            raise OperationalError(number, MOMENTARY[number])

    return strike


async def test_a_claim_that_others_forestall_takes_less_at_a_time_until_it_has_all(mysql_url: str) -> None:
    async with watched_store(mysql_url) as (store, interference):
        await store.publish_batch([message(b"low %d" % n, priority=1) for n in range(50)])
        await store.publish_batch([message(b"high %d" % n, priority=2) for n in range(50)])
        interference.before = refusing(1213, 1213, 1213, None)

        claimed = await store.claim([QUEUE], limit=100, lease=LEASE, token=uuid4())

        asked = [
            re.search(r"limit (\d+)\nfor update", each) for packet in interference.packets for each in packet
        ]
        assert [int(limit[1]) for limit in asked if limit] == [100, 25, 6, 1, 2, 4, 8, 16, 32, 37]
        # In the order of a claim that meets no conflict: the share of the oldest, then by priority.
        oldest, others = [b"low %d" % n for n in range(12)], [b"low %d" % n for n in range(12, 50)]
        bodies = [delivery.body for delivery in claimed.deliveries]
        assert bodies == [*oldest, *(b"high %d" % n for n in range(50)), *others]
        assert {delivery.deliveries for delivery in claimed.deliveries} == {1}
        assert claimed.next_in is None


async def test_a_claim_that_is_forestalled_to_the_end_hands_out_what_it_has_and_is_worth_another_look(
    mysql_url: str,
) -> None:
    async with watched_store(mysql_url) as (store, interference):
        await store.publish_batch([message(b"%d" % n) for n in range(9)])
        interference.before = refusing(1213, None, 1213)

        claimed = await store.claim([QUEUE], limit=8, lease=LEASE, token=uuid4())

        assert [delivery.body for delivery in claimed.deliveries] == [b"0", b"1"]
        assert claimed.full
        with pytest.raises(StoreUnavailable, match="quicker"):
            await claim(store)
        interference.before = refusing(None)
        assert [delivery.body for delivery in await claim(store)] == [b"%d" % n for n in range(2, 9)]


async def test_what_a_claim_has_committed_is_handed_out_though_the_rest_took_another_connection(
    mysql_url: str,
) -> None:
    async with watched_store(mysql_url) as (store, interference):
        await store.publish_batch([message(b"%d" % n) for n in range(8)])
        interference.before = refusing(1213, None, 1047, None)

        deliveries = await claim(store, limit=8)

        assert [delivery.body for delivery in deliveries] == [b"%d" % n for n in range(8)]
        assert {delivery.deliveries for delivery in deliveries} == {1}
        assert await done(store, deliveries) == [WriteResult.WRITTEN] * 8


# -------------------------------------------------------------------------------------- locked rows


async def test_a_locked_table_makes_settlements_and_claims_unavailable_and_hangs_no_caller(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store, connection(mysql_url) as own:
        await store.publish(message())
        deliveries = await claim(store)
        await execute(own, "lock tables nightmail_messages write")
        settling = asyncio.create_task(done(store, deliveries))
        with pytest.raises(StoreUnavailable):
            await claim(store)
        with pytest.raises(StoreUnavailable):
            await settling
        await execute(own, "unlock tables")

        assert await done(store, deliveries) == [WriteResult.WRITTEN]


# ------------------------------------------------------------------------------------ servers refused


async def test_a_read_only_server_is_unavailable_and_left(
    mariadb_server: MariaDB,
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        await store.publish(message())
        await asyncio.to_thread(mariadb_server.sql, "set global read_only = 1")
        try:
            with pytest.raises(StoreUnavailable, match="read-only"):
                await claim(store)
        finally:
            await asyncio.to_thread(mariadb_server.sql, "set global read_only = 0")

        # A connection to a server that may not write is not kept.
        assert len(await claim(store)) == 1


# ------------------------------------------------------------------------------------------ too large


async def test_what_is_larger_than_the_server_takes_is_refused_before_it_is_sent(
    mariadb_server: MariaDB,
    mysql_url: str,
) -> None:
    if not mariadb_server.ours:
        pytest.skip("changes a setting of the server")
    await asyncio.to_thread(mariadb_server.sql, "set global max_allowed_packet = 2097152")
    try:
        async with open_store(mysql_url) as store:
            half_a_million = b"x" * 500_000
            small, too_large, also_small = await asyncio.gather(
                store.publish(message(b"small")),
                store.publish(message(half_a_million * 3)),
                store.publish(message(b"small too")),
                return_exceptions=True,
            )
            assert isinstance(too_large, TooLarge)
            assert None not in (small, also_small)
            assert await store.publish(message(half_a_million)) is not None

            # A batch of settlements that is too large goes in parts.
            deliveries = await claim(store)
            assert len(deliveries) == 3
            batch = [Settlement(each, Dead("rejected", "\N{SNOWMAN}" * 8_000)) for each in deliveries]
            monster = [Settlement(each, Retry()) for each in deliveries]
            assert await store.settle(batch) == [WriteResult.WRITTEN] * 3
            assert await store.settle(monster) == [WriteResult.LOST] * 3
    finally:
        await asyncio.to_thread(mariadb_server.sql, "set global max_allowed_packet = 16777216")
