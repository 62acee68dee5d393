"""Redis, with an append-only file that is flushed before a write is answered."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from redis.asyncio import Redis as Client

from benchmarks.places.place import Bounds, Place
from benchmarks.places.raw import BATCH, ENCODED, handle_all
from testkit.servers.redis import Redis as Server

CLAIM = """
    local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', redis.call('TIME')[1], 'LIMIT', 0, ARGV[1])
    if #due == 0 then return {{}, {}} end
    redis.call('ZREM', KEYS[1], unpack(due))
    for _, id in ipairs(due) do redis.call('ZADD', KEYS[2], redis.call('TIME')[1] + 60, id) end
    return {due, redis.call('HMGET', KEYS[3], unpack(due))}
"""


@contextmanager
def redis() -> Iterator[Place]:
    """A private server."""
    with Server(durable=True) as server:
        server.start()
        yield Redis(server.url)


class Redis(Place):
    """A server of its own."""

    name = "redis"
    bounds = Bounds(share=55, batch_share=60, round_trips=0.05, pick_up_ms=10, lateness_ms=15)

    async def round_trips(self) -> int:
        async with self._connected() as client:
            # Each request of ours is read in one go.
            return int((await client.info("stats"))["total_reads_processed"])

    async def connections(self) -> int:
        async with self._connected() as client:
            return sum(entry["name"].startswith("nightmail") for entry in await client.client_list())

    async def raw_rate(self, count: int) -> float:
        async with self._connected() as client:
            for start in range(0, count, 1000):
                ids = range(start, min(start + 1000, count))
                await client.hset("raw:bodies", mapping={str(id_): ENCODED for id_ in ids})
                await client.zadd("raw:due", {str(id_): 0 for id_ in ids})
            claim = client.register_script(CLAIM)
            begun = time.perf_counter()
            while True:
                ids_, bodies = await claim(keys=["raw:due", "raw:leased", "raw:bodies"], args=[BATCH])
                if not ids_:
                    break
                await handle_all(bodies)
                await client.zrem("raw:leased", *ids_)
                await client.hdel("raw:bodies", *ids_)
            seconds = time.perf_counter() - begun
            await client.delete("raw:due", "raw:leased", "raw:bodies")
            return count / seconds

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        client = Client.from_url(self.url)
        try:
            yield client
        finally:
            await client.aclose()
