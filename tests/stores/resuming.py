"""A worker goes on soon after its server is back, on every kind of server."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final, Protocol

from nightmail.engine.worker import Worker
from nightmail.message import Message
from nightmail.outcome import Done
from nightmail.store import FullStore
from tests.unit.support import QUEUE, Handler, Seen, at_work

LONGEST: Final = timedelta(seconds=1.5)


class Server(Protocol):
    """One that can be killed and started again."""

    def kill(self) -> object: ...

    def start(self) -> object: ...


async def goes_on_soon_after(store: FullStore, server: Server) -> None:
    """Kill the server under a worker for long enough that it has become as patient as it gets; start it again."""
    seen = Seen()
    async with at_work(Worker(store, Handler(), queues=[QUEUE], observer=seen)):
        first = await store.publish(Message(queue=QUEUE, body=b"before"))
        await seen.until(lambda: seen.of(first or 0) == [Done()])

        await asyncio.to_thread(server.kill)
        await seen.until(lambda: len(seen.outages) >= 7)
        assert max(retry_in for _, retry_in in seen.outages) <= LONGEST
        await asyncio.to_thread(server.start)  # Returns when it answers.
        failed = len(seen.outages)
        second = await store.publish(Message(queue=QUEUE, body=b"after"))
        await seen.until(lambda: seen.of(second or 0) == [Done()])

    # No more than what was under way when it came back: the very next try has gone well.
    assert len(seen.outages) - failed <= 1
