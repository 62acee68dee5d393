"""By hand on asyncpg."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from benchmarks.adapters.by_hand import BATCH, ByHand
from benchmarks.adapters.harness import Send, Unsupported, serve

TABLE: Final = """
    create table if not exists raw (
        id bigserial primary key, due timestamptz default now(), lease timestamptz, body bytea
    );
    create index if not exists raw_due on raw (due, id);
"""
INSERT: Final = "insert into raw (body) values ($1)"
LEASE: Final = """
    update raw set lease = now() + interval '1 minute'
    where id = any(array(
        select id from raw where due <= now() and lease is null order by due, id limit $1 for update skip locked))
    returning id, body
"""


class ByHandPostgres(ByHand):
    """One connection."""

    async def open(self, url: str, profile: str) -> None:
        self._url = url
        self._connection = await asyncpg.connect(url)
        await self._connection.execute(TABLE)

    @asynccontextmanager
    async def publisher(self, how: str) -> AsyncIterator[Send]:
        if how == "session":
            raise Unsupported("publishing in an AsyncSession")
        connection = await asyncpg.connect(self._url)

        async def send(body: dict[str, Any], queue: str, due: float | None, timer: str | None) -> object:
            data = json.dumps(body).encode()
            if how == "own":
                return await connection.execute(INSERT, data)
            async with connection.transaction():
                return await connection.execute(INSERT, data)

        yield send
        await connection.close()

    async def insert(self, bodies: Sequence[bytes]) -> None:
        await self._connection.execute("insert into raw (body) select unnest($1::bytea[])", list(bodies))

    async def lease(self) -> Sequence[tuple[Any, bytes]]:
        return [(row["id"], row["body"]) for row in await self._connection.fetch(LEASE, BATCH)]

    async def delete(self, ids: Sequence[Any]) -> None:
        await self._connection.execute("delete from raw where id = any($1)", ids)

    async def close(self) -> None:
        await self.stop()
        await self._connection.close()


if __name__ == "__main__":
    serve(ByHandPostgres())
