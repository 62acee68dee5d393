"""Notifications: how many are sent, and what happens when none arrive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from nightmail.outcome import Done
from nightmail.store import Settlement
from nightmail.stores.postgres import PostgresStore
from nightmail.testing.conformance.build import HOUR, QUEUE, message
from tests.stores.postgres.support import backends, channel, connection, open_store
from tests.stores.support import claim, until

pytestmark = pytest.mark.postgres


class Ear:
    """A client that listens to a store's channel, outside of any store."""

    def __init__(self, own: Any, channel: str) -> None:
        self._own = own
        self._channel = channel
        self._heard: list[str] = []

    async def open(self) -> None:
        await self._own.add_listener(self._channel, lambda *heard: self._heard.append(heard[3]))

    async def heard(self) -> list[str]:
        """What was sent since the last time: whatever it was, it arrives before what we send now."""
        await self._own.execute(f"select pg_notify('{self._channel}', 'end')")
        await until(lambda: "end" in self._heard)
        heard, self._heard = self._heard, []
        return heard[:-1]


@asynccontextmanager
async def listening(url: str, store: PostgresStore) -> AsyncIterator[Ear]:
    async with connection(url) as own:
        ear = Ear(own, await channel(own))
        await ear.open()
        yield ear
        await own.reset()


async def test_many_publishes_in_one_transaction_are_one_notification_for_each_queue(
    postgres_url: str,
) -> None:
    async with open_store(postgres_url) as store, listening(postgres_url, store) as ear:
        async with connection(postgres_url) as own, own.transaction():
            for number in range(10):
                await store.publish(message(), transaction=own)
                await store.publish(message(timer_id=f"t{number}"), transaction=own)
            await store.publish_batch([message(queue="refunds")] * 10, transaction=own)
            assert await ear.heard() == []

        assert sorted(await ear.heard()) == [QUEUE, "refunds"]


async def test_what_is_due_beyond_the_horizon_and_what_was_not_stored_is_not_notified(
    postgres_url: str,
) -> None:
    async with open_store(postgres_url) as store, listening(postgres_url, store) as ear:
        await store.publish(message(due=HOUR))
        await store.publish(message(due=HOUR, timer_id="t"))
        await store.publish(message(timer_id="t"))
        await store.publish(message(due=HOUR * 2, timer_id="t", on_conflict="replace"))
        await store.reschedule(QUEUE, "t", HOUR * 3)
        assert await ear.heard() == []

        await store.publish(message(due=timedelta(seconds=59)))
        assert await ear.heard() == [QUEUE]


async def test_ending_messages_notifies_when_it_frees_a_key_and_only_then(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        await store.publish_batch([message(), message(ordering_key="alone")])
        deliveries = {delivery.ordering_key: delivery for delivery in await claim(store)}
        async with listening(postgres_url, store) as ear:
            await store.settle([Settlement(deliveries[None], Done())])
            assert await ear.heard() == []

            # The next message with this key may be in a transaction that is not committed yet.
            await store.settle([Settlement(deliveries["alone"], Done())])
            assert await ear.heard() == [QUEUE]


async def test_a_notification_that_is_not_ours_rings_every_bell(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        with store.listen([QUEUE]) as bell:
            await until(lambda: store.listening)
            bell.clear()

            await own.execute(f"notify {await channel(own)}")

            assert await bell.wait(10)


async def test_a_killed_listening_connection_is_reopened_and_rings(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        with store.listen([QUEUE]) as bell:
            await until(lambda: store.listening)
            bell.clear()
            (pid,) = await backends(own, "listen")

            await own.fetchval("select pg_terminate_backend($1)", pid)

            assert await bell.wait(20)
            await until(lambda: store.listening)
            bell.clear()
            await store.publish(message())
            assert await bell.wait(10)


async def test_nothing_listens_before_a_bell_is_hung(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        bell = store.listen([QUEUE])
        await store.publish(message())
        assert await backends(own, "listen") == []
        assert not store.listening
        assert store.look_interval == timedelta(seconds=5)

        with bell:
            await until(lambda: store.listening)
            assert len(await backends(own, "listen")) == 1


# ------------------------------------------------------------------------- where none can arrive


class Pooler:
    """A way to the server that lets everything through but notifications, as a pooler of transactions does."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)
        self.url = ""

    async def open(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        # Without TLS: the answer to the question for it has no length, every other one has.
        self.url = self._server._replace(
            netloc=f"{self._server.username}@127.0.0.1:{port}", query="sslmode=disable"
        ).geturl()
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = await asyncio.open_connection(self._server.hostname, self._server.port)
        copies = [
            asyncio.create_task(self._to_server(reader, server[1])),
            asyncio.create_task(self._to_client(server[0], writer)),
        ]
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        for end in (writer, server[1]):
            end.close()

    async def _to_server(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()

    async def _to_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readexactly(5)
            body = await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
            if head[:1] != b"A":
                writer.write(head + body)
                await writer.drain()


async def test_without_notifications_it_looks_more_often_and_says_so_once(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    pooler = Pooler(f"{postgres_url}")
    async with await pooler.open():
        with caplog.at_level(logging.WARNING, logger="nightmail"):
            async with open_store(pooler.url) as store:
                with store.listen([QUEUE]) as bell:
                    await until(lambda: bool(caplog.records))
                    assert not store.listening
                    assert store.look_interval == timedelta(seconds=1)

                    await store.publish(message())
                    assert len(await claim(store)) == 1
                    assert not await bell.wait(0)
                    assert len(caplog.records) == 1
                    assert "looking every second" in caplog.text
