"""Closing a store while the server does not answer, and a store after its event loop has ended."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from nightmail.errors import StoreUnavailable, WrongEventLoop
from nightmail.store import Extend
from nightmail.stores.postgres import PostgresStore
from testkit.servers import Postgres
from tests.stores.postgres.support import LEASE, QUEUE, claim, done, message, open_store, until

pytestmark = pytest.mark.postgres

ALL_IN_ALL = 2.0
"""Seconds in which a store is closed, whatever the server does."""
FOR_THE_MACHINE = 3.0
"""How much later a busy machine may say so."""


async def test_closing_takes_two_seconds_at_most_though_the_server_hangs(
    postgres_server: Postgres, postgres_url: str
) -> None:
    store = PostgresStore(postgres_url)
    await store.open()
    await store.migrate()
    await store.publish(message())
    await store.publish(message(timer_id="t"))
    deliveries = await claim(store)
    await done(store, deliveries[:1])
    renewing = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def keep(extend: Extend) -> None:
        while True:
            loop.call_soon_threadsafe(renewing.set)
            await extend(deliveries, LEASE)

    beside = store.run_on_keeper_thread(keep)
    await beside.__aenter__()
    with store.listen([QUEUE]):
        await until(lambda: store.listening)
        await renewing.wait()
        await asyncio.to_thread(postgres_server.pause)
        try:
            # One statement under way on each connection.
            waiting = [
                asyncio.ensure_future(work)
                for work in (
                    store.publish(message()),
                    store.publish(message(timer_id="u")),
                    claim(store),
                    store.extend(deliveries, LEASE),
                )
            ]
            await asyncio.sleep(0.1)
            began = time.monotonic()
            await store.close()
            took = time.monotonic() - began
        finally:
            await asyncio.to_thread(postgres_server.resume)

    assert took < ALL_IN_ALL + FOR_THE_MACHINE
    assert not any(thread.name == "nightmail-keeper" for thread in threading.enumerate())
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, StoreUnavailable) for result in results)
    await beside.__aexit__(None, None, None)


LOOP_AFTER_LOOP = """
import asyncio, sys
from nightmail.message import Message
from nightmail.stores import open_store

store = open_store(sys.argv[1])

async def prepare():
    await store.open()
    await store.migrate()

async def see():
    found = [pending.id for pending in await store.peek()]
    await store.close()
    return found

asyncio.run(prepare())
ids = [asyncio.run(store.publish(Message(queue="orders", body=b"%d" % number))) for number in range(3)]
assert asyncio.run(see()) == ids, ids
"""


def test_a_store_goes_on_after_its_event_loop_has_ended(postgres_url: str) -> None:
    # In a program of its own: connections that were left open are complained about when they are collected.
    done = subprocess.run(
        [sys.executable, "-c", LOOP_AFTER_LOOP, postgres_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


async def test_another_loop_that_runs_is_told_so_and_does_no_harm(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        for verb in (lambda: store.publish(message()), lambda: claim(store), store.open, store.close):

            def elsewhere() -> None:
                asyncio.run(verb())  # noqa: B023 - run before the next turn

            with pytest.raises(WrongEventLoop, match="another event loop"):
                await asyncio.to_thread(elsewhere)

        await store.publish(message())
        assert len(await claim(store)) == 1
