"""A store belongs to the event loop that opened it, until that has ended."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from nightmail.errors import WrongEventLoop
from nightmail.testing.conformance.build import message
from tests.stores.shared.backend import Backend
from tests.stores.support import claim

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


class EventLoops:
    """For every store."""

    def test_a_store_goes_on_after_its_event_loop_has_ended(self, backend: Backend) -> None:
        # In a program of its own: connections that were left open are complained about when they are collected.
        done = subprocess.run(
            [sys.executable, "-c", LOOP_AFTER_LOOP, backend.url],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert (done.returncode, done.stderr) == (0, "")

    async def test_two_event_loops_one_after_the_other_may_open_one_store(self, backend: Backend) -> None:
        store = backend.store()

        async def once() -> int:
            await store.open()
            await store.migrate()
            await store.publish(message())
            found = len(await claim(store))
            await store.close()
            return found

        for _ in range(2):
            assert await asyncio.to_thread(lambda: asyncio.run(once())) == 1


class OneEventLoop(EventLoops):
    """For stores whose connections belong to an event loop."""

    async def test_another_loop_that_runs_is_told_so_and_does_no_harm(self, backend: Backend) -> None:
        async with backend.opened() as store:
            for verb in (lambda: store.publish(message()), lambda: claim(store), store.open, store.close):

                def elsewhere() -> None:
                    asyncio.run(verb())  # noqa: B023 - run before the next turn

                with pytest.raises(WrongEventLoop, match="another event loop"):
                    await asyncio.to_thread(elsewhere)

            assert await store.publish(message()) is not None
