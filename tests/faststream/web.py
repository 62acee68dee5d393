"""A web application as a server would run it, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.broker.support import PATIENCE


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, which is started before and stopped after."""
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    life = asyncio.create_task(app(scope, incoming.get, outgoing.put))

    async def expect(kind: str) -> None:
        async with asyncio.timeout(PATIENCE):
            answer = await outgoing.get()
        assert answer["type"] == kind, answer

    incoming.put_nowait({"type": "lifespan.startup"})
    await expect("lifespan.startup.complete")
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            yield client
    finally:
        incoming.put_nowait({"type": "lifespan.shutdown"})
        await expect("lifespan.shutdown.complete")
        await life
