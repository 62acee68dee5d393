"""Stopping a broker whose server does not answer, on every kind of server."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from nightmail import OutboxBroker
from tests.broker.support import Heard


class Server(Protocol):
    """One that can be made to answer nothing for a while."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


async def stops_in_time(url: str, server: Server) -> None:
    """Freeze the server under a broker with a handler that goes on; the stop takes the grace period and 5 s at most."""
    running, heard = asyncio.Event(), Heard()
    broker = OutboxBroker(url, create_tables=True, logger=None, observer=heard, graceful_timeout=1.0)

    @broker.subscriber("q")
    async def take(body: str) -> None:
        running.set()
        await asyncio.Event().wait()

    @broker.subscriber("idle")
    async def idle(body: str) -> None: ...

    await broker.start()
    await broker.publish("a", "q")
    async with asyncio.timeout(30):
        await running.wait()
    await asyncio.to_thread(server.pause)
    try:
        began = time.monotonic()
        await broker.stop()
        took = time.monotonic() - began
    finally:
        await asyncio.to_thread(server.resume)
    # Promised are 6 s, at most; the rest is for a machine that is slow. It used to be tens of seconds.
    assert took < 12
    # What was left behind ends now that it is answered.
    if left_behind := asyncio.all_tasks() - {asyncio.current_task()}:
        _, pending = await asyncio.wait(left_behind, timeout=30)
        assert not pending
