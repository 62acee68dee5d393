"""A caller's transaction on MySQL, in everything it may live in, and what cannot be one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from asyncmy.cursors import DictCursor

from nightmail.stores.mysql import MySQLStore
from nightmail.testing.conformance.build import HOUR, QUEUE, message
from tests.stores.mysql.support import (
    CALLERS,
    DriverHarness,
    connection,
    execute,
    open_store,
    raw_connection,
    run,
    watched_store,
)
from tests.stores.shared.backend import Begin
from tests.stores.shared.joining import Joining
from tests.stores.shared.overtaking import Overtaking
from tests.stores.support import claim, done

pytestmark = pytest.mark.mysql


class TestJoining(Joining):
    @pytest.fixture(params=CALLERS.values(), ids=list(CALLERS))
    def begin(self, request: pytest.FixtureRequest) -> Begin:
        begin: Begin = request.param
        return begin


class TestOvertaking(Overtaking):
    """On this store."""


# ------------------------------------------------------------------------------------ what is joined


@pytest.mark.parametrize(
    "settings",
    [
        "sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,IGNORE_SPACE'",
        "sql_mode = ''",
        "time_zone = '+05:30'",
        "character_set_client = latin1, character_set_connection = latin1, character_set_results = latin1",
    ],
)
async def test_the_settings_of_a_callers_session_change_nothing(mysql_url: str, settings: str) -> None:
    odd = message(
        b"\x00\xff'\"\\;--%s%%",
        queue="\N{SNOWMAN}' or \\",
        headers={"quote": "'\\\"%s", "kind": "\N{SNOWMAN}"},
        timer_id="it's \\ a %s",
        ordering_key="k'\\",
        due=HOUR,
        expires_in=HOUR * 2,
    )
    async with open_store(mysql_url) as store, connection(mysql_url, cursor_cls=DictCursor) as own:
        await execute(own, f"set session {settings}")
        await own.begin()
        assert await store.publish(odd, transaction=own) is not None
        assert await store.publish(odd, transaction=own) is None
        (joined,) = await store.peek(odd.queue, transaction=own)
        await own.commit()

        (found,) = await store.peek(odd.queue)
        assert found == joined
        assert (found.queue, found.body, found.headers) == (odd.queue, odd.body, odd.headers)
        assert (found.timer_id, found.ordering_key) == (odd.timer_id, odd.ordering_key)
        assert found.due_at - found.published_at == HOUR
        assert found.expires_at == found.published_at + HOUR * 2


async def test_publishing_in_a_transaction_needs_no_connection_of_ours_and_few_statements(
    mysql_url: str,
) -> None:
    async with watched_store(mysql_url) as (store, interference):
        theirs: list[str] = []

        def note(_cursor: Any, query: str, _elapsed: float) -> None:
            theirs.append(query)

        async with connection(mysql_url, query_callback=note) as own:
            await execute(own, "set session transaction isolation level read committed")
            await own.begin()
            await store.publish(message(), transaction=own)
            interference.packets.clear()
            counts = []
            for verb in (
                lambda: store.publish(message(), transaction=own),
                lambda: store.publish_batch([message(), message()], transaction=own),
                lambda: store.publish(message(timer_id="t"), transaction=own),
                lambda: store.publish(message(timer_id="t"), transaction=own),
                lambda: store.publish(message(timer_id="t", on_conflict="replace"), transaction=own),
            ):
                theirs.clear()
                await verb()
                counts.append(len(theirs))
            await own.rollback()

        assert interference.packets == []
        assert counts == [1, 2, 4, 3, 4]


# ------------------------------------------------------------------------------ two at the same time


async def test_a_skipped_publish_at_read_committed_hides_nothing_and_keeps_no_other_from_names_beside_it(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        await store.publish(message(b"there", timer_id="b"))
        async with raw_connection(mysql_url) as transaction:
            assert await store.publish(message(timer_id="b"), transaction=transaction) is None

            async with asyncio.timeout(2):
                for name in ("a", "b2", "c"):
                    assert await store.publish(message(timer_id=name, due=HOUR)) is not None
            assert [delivery.body for delivery in await claim(store)] == [b"there"]


async def test_a_caller_at_repeatable_read_does_not_skip_because_of_a_message_that_is_gone(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        await store.publish(message(b"gone", timer_id="t"))
        async with DriverHarness(mysql_url).transaction(repeatable_read=True) as transaction:
            await execute(transaction, "select count(*) from nightmail_messages")
            await done(store, await claim(store))

            assert await store.publish(message(b"new", timer_id="t"), transaction=transaction) is not None

        assert [delivery.body for delivery in await claim(store)] == [b"new"]


@asynccontextmanager
async def a_snapshot_for_one_transaction(url: str) -> AsyncIterator[Any]:
    """A transaction at repeatable read, in a session that says of itself that it is at read committed."""
    async with raw_connection(url) as own:
        await own.rollback()
        await execute(own, "set transaction isolation level repeatable read")
        await own.begin()
        await execute(own, "select count(*) from nightmail_messages")
        yield own


async def test_a_caller_at_repeatable_read_for_one_transaction_does_not_skip_because_of_a_message_that_is_gone(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        await store.publish(message(b"gone", timer_id="t"))
        async with a_snapshot_for_one_transaction(mysql_url) as transaction:
            await done(store, await claim(store))
            await store.publish(message(queue="other"), transaction=transaction)

            assert await store.publish(message(b"new", timer_id="t"), transaction=transaction) is not None
            # Its own is not committed yet, and takes the name all the same.
            assert await store.publish(message(b"second", timer_id="t"), transaction=transaction) is None

        assert [delivery.body for delivery in await claim(store)] == [b"new"]


async def test_a_caller_at_repeatable_read_for_one_transaction_replaces_a_message_that_it_does_not_see(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        await store.publish(message(b"gone", timer_id="t"))
        async with a_snapshot_for_one_transaction(mysql_url) as transaction:
            await done(store, await claim(store))
            unseen = await store.publish(message(b"unseen", timer_id="t"))

            over = message(b"over", timer_id="t", on_conflict="replace")
            assert await store.publish(over, transaction=transaction) == unseen

        assert [delivery.body for delivery in await claim(store)] == [b"over"]


async def test_a_publish_waits_while_another_is_given_ids_for_an_unknown_number_of_rows(
    mysql_url: str,
) -> None:
    async with open_store(mysql_url) as store:
        # By its second row it has taken ids, and will keep everybody else from them until it ends.
        slowly = (
            "insert into nightmail_messages (queue, priority, due_at, published_at, headers, body) "
            "select 'slow', sleep(0.2), utc_timestamp(6), utc_timestamp(6), '{}', 'x' from seq_1_to_3"
        )
        storing = asyncio.create_task(run(mysql_url, slowly))
        while not store.retried[1467]:
            assert not storing.done()
            await store.publish(message(timer_id=f"t{uuid4()}"))

        await storing
        assert len(await store.peek("slow")) == 3


async def test_a_cancel_of_all_waits_for_no_message_in_another_queue(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        for queue, name in ((QUEUE, "a"), ("other", "a"), (QUEUE, "b"), (QUEUE, "c")):
            await store.publish(message(queue=queue, timer_id=name, dedup_for=HOUR))
        async with raw_connection(mysql_url) as own:
            await execute(own, "select * from nightmail_messages where queue_timer = 'other\\0a' for update")
            await execute(
                own, "select * from nightmail_dedup where queue = 'other' and timer_id = 'a' for update"
            )

            async with asyncio.timeout(2):
                assert await store.cancel_all(QUEUE) == 3

        assert await store.publish(message(timer_id="a")) is not None
        assert len(await store.peek("other")) == 1


@pytest.mark.parametrize("joined", [False, True])
async def test_a_cancel_of_all_ends_though_others_go_on_publishing(mysql_url: str, joined: bool) -> None:
    async with open_store(mysql_url) as store, open_store(mysql_url) as other:
        await store.publish_batch([message() for _ in range(100)])

        async def publish() -> None:
            while True:
                await other.publish(message())

        async with asyncio.timeout(20), raw_connection(mysql_url) as own:
            publishing = [asyncio.create_task(publish()) for _ in range(4)]
            try:
                assert await store.cancel_all(QUEUE, transaction=own if joined else None) >= 100
            finally:
                for task in publishing:
                    task.cancel()
                await asyncio.wait(publishing)


async def test_a_cancel_of_all_commits_portion_by_portion(
    mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MySQLStore, "_cancels_at_once", 10)
    async with watched_store(mysql_url) as (store, interference):
        await store.publish_batch([message() for _ in range(35)])
        interference.packets.clear()

        assert await store.cancel_all(QUEUE) == 35

        sent = [statement for packet in interference.packets for statement in packet]
        steps = [word for statement in sent for word in ("delete m", "commit") if statement.startswith(word)]
        assert steps == ["delete m", "commit"] * 4 + ["commit"]


# ----------------------------------------------------------------------------------- what is refused
