"""By hand on redis-py."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final
from uuid import uuid4

from redis.asyncio import Redis

from benchmarks.adapters.by_hand import BATCH, ByHand
from benchmarks.adapters.harness import Send, Unsupported, serve

DUE, LEASED, BODIES = "raw:due", "raw:leased", "raw:bodies"
LEASE: Final = """
    local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', redis.call('TIME')[1], 'LIMIT', 0, ARGV[1])
    if #due == 0 then return {{}, {}} end
    redis.call('ZREM', KEYS[1], unpack(due))
    for _, id in ipairs(due) do redis.call('ZADD', KEYS[2], redis.call('TIME')[1] + 60, id) end
    return {due, redis.call('HMGET', KEYS[3], unpack(due))}
"""


class ByHandRedis(ByHand):
    """A sorted set of what is due, another of what is leased, and a hash of bodies."""

    async def open(self, url: str, profile: str) -> None:
        self._client = Redis.from_url(url)
        self._claim = self._client.register_script(LEASE)
        self._number, self._name = count(), uuid4().hex

    @asynccontextmanager
    async def publisher(self, how: str) -> AsyncIterator[Send]:
        if how == "session":
            raise Unsupported("publishing in an AsyncSession")

        async def send(body: dict[str, Any], queue: str, due: float | None, timer: str | None) -> None:
            await self.insert([json.dumps(body).encode()])

        yield send

    async def insert(self, bodies: Sequence[bytes]) -> None:
        named = {f"{self._name}-{next(self._number)}": body for body in bodies}
        # The commands of a pipeline are typed as if each were awaited.
        pipeline: Any = self._client.pipeline(transaction=True)
        await pipeline.hset(BODIES, mapping=named).zadd(DUE, dict.fromkeys(named, 0)).execute()

    async def lease(self) -> Sequence[tuple[Any, bytes]]:
        ids, bodies = await self._claim(keys=[DUE, LEASED, BODIES], args=[BATCH])
        return list(zip(ids, bodies, strict=True))

    async def delete(self, ids: Sequence[Any]) -> None:
        pipeline: Any = self._client.pipeline(transaction=True)
        await pipeline.zrem(LEASED, *ids).hdel(BODIES, *ids).execute()

    async def close(self) -> None:
        await self.stop()
        await self._client.aclose()


if __name__ == "__main__":
    serve(ByHandRedis())
